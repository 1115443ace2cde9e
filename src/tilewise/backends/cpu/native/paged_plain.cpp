#include "paged_plain.hpp"

#include <cmath>

#include "page_batch.hpp"
#include "rows.hpp"
#include "threads.hpp"
#include "workspace.hpp"

namespace tilewise {
namespace {

double element(DType t, const void* base, int64_t i) {
  switch (t) {
    case DType::f64: return static_cast<const double*>(base)[i];
    case DType::f32: return static_cast<const float*>(base)[i];
    case DType::bf16: return to_float(static_cast<const bf16*>(base)[i]);
    case DType::f16: return static_cast<double>(static_cast<const f16*>(base)[i]);
    case DType::i8: return to_float(static_cast<const Int8*>(base)[i]);
    case DType::e4m3: return to_float(static_cast<const E4m3*>(base)[i]);
    default: return to_float(static_cast<const E5m2*>(base)[i]);
  }
}

void put(DType t, void* base, int64_t i, double x) {
  if (t == DType::f64) static_cast<double*>(base)[i] = x;
  else if (t == DType::f32) static_cast<float*>(base)[i] = static_cast<float>(x);
  else if (t == DType::bf16) static_cast<bf16*>(base)[i] = to_bf16(static_cast<float>(x));
  else static_cast<f16*>(base)[i] = static_cast<f16>(x);
}

double real_at(const PagedArguments& a, const void* base, int64_t i) {
  return a.dtype == DType::f64 ? static_cast<const double*>(base)[i] : static_cast<const float*>(base)[i];
}

bool drafted(const PagedArguments& a, const PagedSequence& s, int64_t query, int64_t key) {
  const int64_t fresh = key - s.position(0);
  if (!a.draft_mask || fresh < 0) return true;
  return fresh < a.max_new && a.draft_mask[(s.first_token + query) * a.draft_stride_t + fresh];
}

void one_row(const PagedArguments& a, const PagedSequence& s, int64_t query, int64_t head, double* acc) {
  const Pages& p = a.pages;
  const int64_t kv_head = head / (a.q_heads / a.kv_heads), token = s.first_token + query;
  const int64_t q = token * a.qs.t + head * a.qs.h, out = token * a.os.t + head * a.os.h;
  const Range keys = s.visible(query, a.meaning);
  double m = a.sinks ? real_at(a, a.sinks, head) : -INFINITY, l = m == -INFINITY ? 0.0 : 1.0;
  std::fill(acc, acc + a.v_dim, 0.0);
  for (int64_t key = keys.begin; key < keys.end; key++) {
    if (!drafted(a, s, query, key)) continue;
    const Place at = place_of(p, s, key);
    const int64_t k = key_offset(p, at) + kv_head * p.k_stride_head;
    const int64_t v = value_offset(p, at) + kv_head * p.v_stride_head;
    double x = 0.0;
    for (int64_t d = 0; d < a.qk_dim; d++) x += element(a.dtype, a.q, q + d) * element(p.dtype, p.k, k + d);
    x *= a.meaning.scale * static_cast<double>(scale_at(p.k_scale, at, kv_head));
    if (a.meaning.softcap != 0) x = a.meaning.softcap * std::tanh(x / a.meaning.softcap);
    if (x == -INFINITY) continue;
    const double next = x > m ? x : m, old = m == -INFINITY ? 0.0 : std::exp(m - next), w = std::exp(x - next);
    const double weight = w * static_cast<double>(scale_at(p.v_scale, at, kv_head));
    m = next;
    l = l * old + w;
    for (int64_t e = 0; e < a.v_dim; e++) acc[e] = acc[e] * old + weight * element(p.dtype, p.v, v + e);
  }
  for (int64_t e = 0; e < a.v_dim; e++) put(a.dtype, a.out, out + e, l == 0.0 ? 0.0 : acc[e] / l);
  if (!a.lse) return;
  const double lse = l == 0.0 ? -INFINITY : m + std::log(l);
  const int64_t i = head * a.lse_strides.h + token * a.lse_strides.t;
  if (a.dtype == DType::f64) static_cast<double*>(a.lse)[i] = lse;
  else static_cast<float*>(a.lse)[i] = static_cast<float>(lse);
}

}  // namespace

void paged_plain(const PagedArguments& a) {
  for (int64_t i = 0; i < sequences(a.batch); i++) {
    const PagedSequence s = sequence(a.batch, i);
    parallel_for(s.q_len * a.q_heads, [&](int64_t task, int) {
      Workspace space(static_cast<std::size_t>(a.v_dim) * sizeof(double));
      one_row(a, s, task / a.q_heads, task % a.q_heads, space.take<double>(static_cast<std::size_t>(a.v_dim)));
    });
  }
}

}  // namespace tilewise
