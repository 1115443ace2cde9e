#include "prefill_kernel.hpp"

#include "forward_block.hpp"

namespace tilewise {
namespace {

template <class T, bool per_key> struct PageSource {
  using element = T;
  static constexpr bool scaled = per_key;
  const Pages& pages;
  PagedSequence seq;
  int64_t head;

  template <class F> void each_place(int64_t first, int64_t count, F&& f) const {
    int64_t slot = first % pages.page_size;
    const int32_t* page = seq.pages + first / pages.page_size;
    for (int64_t i = 0; i < count; i++) {
      f(i, Place{*page, slot});
      if (++slot == pages.page_size) slot = 0, page++;
    }
  }
  void rows(int64_t first, int64_t count, const T** keys, const T** values) const {
    const T* k = static_cast<const T*>(pages.k) + head * pages.k_stride_head;
    const T* v = static_cast<const T*>(pages.v) + head * pages.v_stride_head;
    each_place(first, count, [&](int64_t i, Place at) {
      keys[i] = k + key_offset(pages, at);
      values[i] = v + value_offset(pages, at);
    });
  }
  void scales(int64_t first, int64_t count, float* key_scale, float* value_scale) const {
    each_place(first, count, [&](int64_t i, Place at) {
      key_scale[i] = per_slot(pages.k_scale) ? scale_at(pages.k_scale, at, head) : 1.0f;
      value_scale[i] = per_slot(pages.v_scale) ? scale_at(pages.v_scale, at, head) : 1.0f;
    });
  }
};

template <class U> void load_query(const PagedArguments& a, int64_t offset, typename U::word* out) {
  if constexpr (U::pair == 2) copy_words<U>(static_cast<const bf16*>(a.q) + offset, a.qk_dim, out);
  else load_row(a.dtype, a.q, offset, a.qk_dim, out);
}

template <class U, class T, bool per_key> void run(const PagedArguments& a, const RowBlock& block) {
  using Source = PageSource<T, per_key>;
  const int64_t count = block.rows(), D = a.qk_dim, E = a.v_dim, head = block.head;
  // A scale that all keys of the head share belongs to the logits, and to the result.
  Meaning meaning = a.meaning;
  if (!per_slot(a.pages.k_scale)) meaning.scale *= static_cast<double>(scale_at(a.pages.k_scale, {}, head));
  const float value_scale = per_slot(a.pages.v_scale) ? 1.0f : scale_at(a.pages.v_scale, {}, head);
  KeyFacts facts;
  facts.mask_begin = block.seq.position(0);
  const Scoring<U> scoring(meaning, D, E, false, per_key, facts);
  const Source source{a.pages, block.seq, head};

  Workspace space(QueryState<U>::bytes(count, D, E) + ForwardBlock<U, Source, false>::bytes(D, E));
  QueryState<U> rows(space, count, D, E);
  for (int64_t r = 0; r < count; r++) {
    const int64_t query = block.token(r) - block.seq.first_token;
    const Range seen = block.seq.visible(query, a.meaning);
    rows.row[r].begin = seen.begin;
    rows.row[r].end = seen.end;
    if (a.draft_mask) {
      rows.row[r].mask = a.draft_mask + block.token(r) * a.draft_stride_t;
      rows.row[r].end = std::min(seen.end, facts.mask_begin + a.max_new);
    }
    load_query<U>(a, block.token(r) * a.qs.t + block.q_head(r) * a.qs.h, rows.q_row(r));
  }
  attend<U, Source, false>(scoring, source, rows, space);
  for (int64_t r = 0; r < count; r++) {
    const int64_t token = block.token(r), q_head = block.q_head(r);
    float lse, *acc = rows.acc_row(r);
    const float* sink = a.sinks ? static_cast<const float*>(a.sinks) + q_head : nullptr;
    const float weight = finish_row(rows.m[r], rows.l[r], scoring.unit, sink, lse) * value_scale;
    const int64_t at = token * a.os.t + q_head * a.os.h;
    if (rows.l[r] == 0.0f) zero_row(a.dtype, E, a.out, at);
    else {
      for (int64_t e = 0; e < rows.acc_ld; e += kLanes) store(acc + e, load(acc + e) * splat(weight));
      store_row(a.dtype, acc, E, a.out, at);
    }
    if (a.lse) static_cast<float*>(a.lse)[q_head * a.lse_strides.h + token * a.lse_strides.t] = lse;
  }
}

template <class U, class T> PrefillKernel kernel(bool per_key) { return per_key ? run<U, T, true> : run<U, T, false>; }

}  // namespace

PrefillKernel prefill_kernel(const PagedArguments& a) {
  const bool per_key = per_slot(a.pages.k_scale) || per_slot(a.pages.v_scale);
  if constexpr (kHasBf16Dot) {
    if (a.dtype == DType::bf16) {
      if (a.pages.dtype == DType::bf16) return kernel<Bf16Unit, bf16>(per_key);
      if (a.pages.dtype == DType::i8) return kernel<Bf16Unit, Int8>(per_key);
      if (a.pages.dtype == DType::e4m3) return kernel<Bf16Unit, E4m3>(per_key);
      if (a.pages.dtype == DType::e5m2) return kernel<Bf16Unit, E5m2>(per_key);
    }
  }
  switch (a.pages.dtype) {
    case DType::bf16: return kernel<F32Unit, bf16>(per_key);
    case DType::f16: return kernel<F32Unit, f16>(per_key);
    case DType::i8: return kernel<F32Unit, Int8>(per_key);
    case DType::e4m3: return kernel<F32Unit, E4m3>(per_key);
    case DType::e5m2: return kernel<F32Unit, E5m2>(per_key);
    default: return kernel<F32Unit, float>(per_key);
  }
}

}  // namespace tilewise
