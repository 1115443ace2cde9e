// Where a sequence lies in the arrays, and which of its pairs the window shows. i and j below count from the
// sequence's first token.
#pragma once
#include "visibility.hpp"

namespace tilewise {

struct DenseSequence {
  int64_t batch = 0;  // 0 in packed calls, where b-strides mean nothing
  int64_t q_first = 0, q_count = 0, kv_first = 0, kv_count = 0;
  int64_t shift() const { return position_of(0, q_count, kv_count); }  // query i stands at position i + shift
};

inline DenseSequence sequence_of(const AttentionArguments& a, int64_t n) {
  if (a.q_starts)
    return {0, a.q_starts[n], a.q_starts[n + 1] - a.q_starts[n], a.kv_starts[n], a.kv_starts[n + 1] - a.kv_starts[n]};
  return {n, 0, a.q_lens ? a.q_lens[n] : a.q_len, 0, a.kv_lens ? a.kv_lens[n] : a.kv_len};
}

// Keys that some of these queries see, by window and length; contiguous.
inline Range keys_seen(const DenseSequence& s, const Meaning& m, Range queries) {
  return visible_keys(m, queries, s.q_count, s.kv_count);
}
// Queries that see some of these keys.
inline Range queries_seeing(const DenseSequence& s, const Meaning& m, Range keys) {
  if (keys.empty()) return {};
  return {std::max<int64_t>(0, keys.begin - m.right - s.shift()),
          std::min(s.q_count, keys.end - 1 + m.left - s.shift() + 1)};
}

}  // namespace tilewise
