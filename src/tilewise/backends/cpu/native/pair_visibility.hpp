// What only the data decides: the bool mask and the segment ids of one head of one sequence.
// Windows and lengths: sequences.hpp.
#pragma once
#include <limits>

#include "sequences.hpp"

namespace tilewise::gradients {

enum class Seen { none, some, all };

struct PairVisibility {
  const uint8_t* mask = nullptr;  // at query 0, key 0 of the sequence; 1: visible
  int64_t mask_t = 0, mask_s = 0;
  const int32_t *q_ids = nullptr, *kv_ids = nullptr;
  int64_t q_stride = 0, kv_stride = 0;

  bool decides() const { return mask || q_ids; }
  bool visible(int64_t i, int64_t j) const {
    if (q_ids && (q_ids[i * q_stride] < 0 || q_ids[i * q_stride] != kv_ids[j * kv_stride])) return false;
    return !mask || mask[i * mask_t + j * mask_s];
  }

  Seen seen(Range queries, Range keys) const {
    const Seen by_ids = q_ids ? seen_by_ids(queries, keys) : Seen::all;
    if (!mask || by_ids == Seen::none) return by_ids;
    const Seen by_mask = seen_by_mask(queries, keys);
    return by_ids == Seen::all ? by_mask : by_mask == Seen::none ? Seen::none : Seen::some;
  }

 private:
  struct Ids { int32_t least = std::numeric_limits<int32_t>::max(), most = -1; bool padding = false; };
  static Ids span(const int32_t* ids, int64_t stride, Range r) {
    Ids s;
    for (int64_t i = r.begin; i < r.end; i++) {
      const int32_t id = ids[i * stride];
      if (id < 0) { s.padding = true; continue; }
      s.least = std::min(s.least, id);
      s.most = std::max(s.most, id);
    }
    return s;
  }
  Seen seen_by_ids(Range queries, Range keys) const {
    const Ids q = span(q_ids, q_stride, queries), k = span(kv_ids, kv_stride, keys);
    if (q.most < k.least || k.most < q.least) return Seen::none;
    const bool one = q.least == q.most && k.least == k.most && q.least == k.least;
    return one && !q.padding && !k.padding ? Seen::all : Seen::some;
  }
  Seen seen_by_mask(Range queries, Range keys) const {
    bool any = false, every = true;
    const Range qs = mask_t ? queries : Range{queries.begin, queries.begin + 1};
    const Range ks = mask_s ? keys : Range{keys.begin, keys.begin + 1};
    for (int64_t i = qs.begin; i < qs.end && (every || !any); i++) {
      const uint8_t* row = mask + i * mask_t;
      uint8_t some = 0, all = 1;
      if (mask_s == 1)
        for (int64_t j = ks.begin; j < ks.end; j++) { some |= row[j]; all &= row[j] != 0; }
      else
        for (int64_t j = ks.begin; j < ks.end; j++) { some |= row[j * mask_s]; all &= row[j * mask_s] != 0; }
      any |= some != 0;
      every &= all != 0;
    }
    return !any ? Seen::none : every ? Seen::all : Seen::some;
  }
};

inline PairVisibility pair_visibility(const AttentionArguments& a, const DenseSequence& s, int64_t head) {
  PairVisibility p;
  if (a.mask) {
    const Strides4& m = a.mask_strides;
    p.mask = a.mask + s.batch * m.b + head * m.h + s.q_first * m.t + s.kv_first * m.s;
    p.mask_t = m.t, p.mask_s = m.s;
  }
  if (a.q_segments) {
    p.q_ids = a.q_segments + s.batch * a.q_segment_stride_b + s.q_first * a.q_segment_stride_t;
    p.kv_ids = a.kv_segments + s.batch * a.kv_segment_stride_b + s.kv_first * a.kv_segment_stride_t;
    p.q_stride = a.q_segment_stride_t, p.kv_stride = a.kv_segment_stride_t;
  }
  return p;
}

}  // namespace tilewise::gradients
