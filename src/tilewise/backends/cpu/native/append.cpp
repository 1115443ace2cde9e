#include "append.hpp"

#include <algorithm>

#include "page_batch.hpp"
#include "rows.hpp"
#include "threads.hpp"

namespace tilewise {
namespace {

constexpr int64_t kTaskElements = 32 << 10;

// stored = x / scale, in the precision of x.
template <class T, class F> TW_INLINE T stored(F x) {
  if constexpr (kIs8Bit<T>) return encode8<T>(x);
  else return from_float<T>(x);
}
template <class S, class T> void write_stored(const S* row, int64_t n, float scale, T* out) {
  using F = decltype(to_float(row[0]));
  using Real = std::conditional_t<std::is_same_v<F, double>, double, float>;
  if constexpr (std::is_same_v<S, T>)
    if (scale == 1.0f) return static_cast<void>(std::memcpy(out, row, static_cast<std::size_t>(n) * sizeof(T)));
  if (scale == 1.0f)
    for (int64_t i = 0; i < n; i++) out[i] = stored<T>(static_cast<Real>(to_float(row[i])));
  else
    for (int64_t i = 0; i < n; i++) out[i] = stored<T>(static_cast<Real>(to_float(row[i])) / static_cast<Real>(scale));
}

template <class S, class T> void write_token(const AppendArguments& a, int64_t token, Place at) {
  T* k = static_cast<T*>(const_cast<void*>(a.pages.k)) + key_offset(a.pages, at);
  T* v = static_cast<T*>(const_cast<void*>(a.pages.v)) + value_offset(a.pages, at);
  const S *from_k = static_cast<const S*>(a.k) + token * a.ks.t, *from_v = static_cast<const S*>(a.v) + token * a.vs.t;
  for (int64_t h = 0; h < a.kv_heads; h++) {
    write_stored(from_k + h * a.ks.h, a.qk_dim, scale_at(a.pages.k_scale, at, h), k + h * a.pages.k_stride_head);
    write_stored(from_v + h * a.vs.h, a.v_dim, scale_at(a.pages.v_scale, at, h), v + h * a.pages.v_stride_head);
  }
}

template <class F> void with_element(DType t, F&& f) {
  if (t == DType::f64) f(double{});
  else with_storage(t, f);
}

template <class S, class T> void run(const AppendArguments& a, int64_t first, int64_t end) {
  const int64_t per_token = a.kv_heads * (a.qk_dim + a.v_dim);
  const int64_t each = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(per_token, 1));
  const int32_t* starts = a.batch.cu_q_lens;
  const int64_t n = sequences(a.batch);
  parallel_for((end - first + each - 1) / each, [&](int64_t task, int) {
    const int64_t from = first + task * each, to = std::min(end, from + each);
    int64_t i = std::upper_bound(starts, starts + n + 1, from) - starts - 1;
    for (int64_t token = from; token < to; token++) {
      while (token >= starts[i + 1]) i++;
      const PagedSequence s = sequence(a.batch, i);
      const int64_t position = s.position(token - s.first_token);
      write_token<S, T>(a, token, place_of(a.pages, s, position));
    }
  });
}

}  // namespace

ValueError append(const AppendArguments& a) {
  const ValueError wrong = check_batch(a.batch, a.pages, a.max_tokens, [](const PagedSequence& s) {
    return Range{std::max<int64_t>(0, s.kv_len - s.q_len), s.kv_len};
  });
  const int64_t n = wrong == ValueError::ok ? sequences(a.batch) : 0;
  if (n == 0) return wrong;
  for (int64_t i = 0; i < n; i++) {
    const auto s = sequence(a.batch, i);
    if (s.q_len > s.kv_len) return ValueError::q_len_range;  // kv_lens count the new tokens
  }
  const int64_t first = a.batch.cu_q_lens[0], end = a.batch.cu_q_lens[n];
  const auto into = [&](auto source) {
    with_element(a.pages.dtype, [&](auto target) { run<decltype(source), decltype(target)>(a, first, end); });
  };
  switch (a.dtype) {
    case DType::f32: into(float{}); break;
    case DType::bf16: into(bf16{}); break;
    case DType::f16: into(f16{}); break;
    case DType::f64: into(double{}); break;
    default: break;
  }
  return ValueError::ok;
}

}  // namespace tilewise
