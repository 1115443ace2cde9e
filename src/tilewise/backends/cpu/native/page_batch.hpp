// Sequences of a paged batch: lengths, windows, where a position's rows lie; and the checks that make them safe to use.
#pragma once
#include <algorithm>

#include "arguments.hpp"
#include "check.hpp"
#include "visibility.hpp"

namespace tilewise {

struct PagedSequence {
  int64_t index = 0, first_token = 0, q_len = 0, kv_len = 0;
  const int32_t* pages = nullptr;

  int64_t position(int64_t query) const { return position_of(query, q_len, kv_len); }
  // What a query sees, or any of some queries, as far as window and lengths decide.
  Range visible(int64_t query, const Meaning& m) const { return visible_keys(m, query, q_len, kv_len); }
  Range visible(Range queries, const Meaning& m) const { return visible_keys(m, queries, q_len, kv_len); }
};

inline int64_t sequences(const PageBatch& b) { return b.num_seqs ? *b.num_seqs : b.max_seqs; }
inline PagedSequence sequence(const PageBatch& b, int64_t i) {
  return {i, b.cu_q_lens[i], b.cu_q_lens[i + 1] - b.cu_q_lens[i], b.kv_lens[i], b.page_indices + i * b.pages_per_seq};
}

// Element offsets of a position's rows of head 0.
struct Place { int64_t page = 0, slot = 0; };
inline Place place_of(const Pages& p, const PagedSequence& s, int64_t position) {
  return {s.pages[position / p.page_size], position % p.page_size};
}
inline int64_t key_offset(const Pages& p, Place at) { return at.page * p.k_stride_page + at.slot * p.k_stride_slot; }
inline int64_t value_offset(const Pages& p, Place at) { return at.page * p.v_stride_page + at.slot * p.v_stride_slot; }
inline float scale_at(const PageScale& s, Place at, int64_t head) {
  return s.value ? s.value[at.page * s.stride_page + at.slot * s.stride_slot + head * s.stride_head] : 1.0f;
}
inline bool per_slot(const PageScale& s) { return s.value && (s.stride_page != 0 || s.stride_slot != 0); }

// Nothing but what a call will walk by is looked at: table entries of pages that no query sees may hold anything.
template <class Touched>
ValueError check_batch(const PageBatch& b, const Pages& p, int64_t max_tokens, Touched touched) {
  const int64_t n = sequences(b);
  if (n < 0 || n > b.max_seqs) return ValueError::num_seqs_range;
  const ValueError starts = check_starts(b.cu_q_lens, n, max_tokens);
  if (starts != ValueError::ok) return starts;
  const ValueError lens = check_lens(b.kv_lens, n, b.pages_per_seq * p.page_size, ValueError::kv_len_range);
  if (lens != ValueError::ok) return lens;
  for (int64_t i = 0; i < n; i++) {
    const PagedSequence s = sequence(b, i);
    if (s.q_len == 0) continue;
    const Range r = touched(s);
    if (r.empty()) continue;
    for (int64_t page = r.begin / p.page_size; page <= (r.end - 1) / p.page_size; page++)
      if (s.pages[page] < 0 || s.pages[page] >= p.num_pages) return ValueError::page_range;
  }
  return ValueError::ok;
}

}  // namespace tilewise
