// Which keys a row of queries sees: an interval by arithmetic (lengths, window), narrowed inside a block of keys by
// segments and a mask. A block that a row sees without holes needs no look at single elements.
#pragma once
#include <algorithm>
#include <limits>

#include "arguments.hpp"
#include "simd.hpp"

namespace tilewise {

struct Range {  // [begin, end) of keys or queries
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  int64_t size() const { return empty() ? 0 : end - begin; }
};

// Where query i of a sequence stands among its keys.
inline int64_t position_of(int64_t i, int64_t q_len, int64_t kv_len) { return i + kv_len - q_len; }

// Keys that some of these queries see, by window and length: one at pos sees [pos - left, pos + right] of valid keys.
inline Range visible_keys(const Meaning& meaning, Range queries, int64_t q_len, int64_t kv_len) {
  const int64_t first = position_of(queries.begin, q_len, kv_len), last = position_of(queries.end - 1, q_len, kv_len);
  const Range keys{std::max<int64_t>(0, first - meaning.left), std::min(kv_len, last + meaning.right + 1)};
  return queries.empty() || keys.empty() ? Range{} : keys;
}
inline Range visible_keys(const Meaning& meaning, int64_t i, int64_t q_len, int64_t kv_len) {
  return visible_keys(meaning, Range{i, i + 1}, q_len, kv_len);
}

// One row of queries. Rows of a block may come from any heads and positions.
struct QueryRow {
  int64_t begin = 0, end = 0;      // keys by arithmetic; begin >= end: sees nothing
  const uint8_t* mask = nullptr;   // entry of key KeyFacts::mask_begin
  const void* bias = nullptr;      // entry of key 0
  int32_t segment = 0;
};

// What all rows of a task share about keys.
struct KeyFacts {
  const int32_t* segments = nullptr;  // of key 0; null: none
  int64_t segment_stride = 1;
  int64_t mask_stride = 1,
          mask_begin = 0;  // keys before mask_begin are not masked (drafts: the mask is of the new keys)
  DType bias_dtype = DType::f32;
  int64_t bias_stride = 1;
};

// The part of a block of keys that a row sees: columns [begin, end), some of them hidden if there are holes.
struct RowView {
  int begin = 0, end = 0;
  bool holes = false;
  bool empty() const { return begin >= end; }
};

// Narrows `view` to what keep(column) lets through. `counted` columns at the front are known to be visible.
template <class Keep> inline void narrow(RowView& view, int counted, Keep keep) {
  const int from = view.begin + counted;
  int count = 0, last = view.end, first = from;
  for (int c = from; c < view.end; c++) count += keep(c) ? 1 : 0;
  if (count < view.end - from) {
    while (last > from && !keep(last - 1)) last--;
    if (!counted) while (first < last && !keep(first)) first++;
  }
  view.end = last;
  if (!counted) view.begin = first;
  view.holes |= counted + count < view.end - view.begin;
}

// The keys [first, first + count) as rows see them, with what neighbouring rows have in common remembered.
class BlockVisibility {
 public:
  static constexpr int kMost = 512;

  void open(const KeyFacts& facts, int64_t first, int count) {
    facts_ = &facts;
    first_ = first;
    count_ = count;
    known_ = false;
    if (facts.segments)
      for (int c = 0; c < count; c++) segments_[c] = facts.segments[(first + c) * facts.segment_stride];
  }

  RowView view(const QueryRow& row) {
    RowView v{clamp(row.begin - first_), clamp(row.end - first_), false};
    if (v.empty()) return v;
    if (facts_->segments) {
      if (!known_ || known_segment_ != row.segment) {
        known_ = true;
        known_segment_ = row.segment;
        known_view_ = RowView{0, count_, false};
        narrow(known_view_, 0, [&](int c) { return segments_[c] == row.segment; });
      }
      v.begin = std::max(v.begin, known_view_.begin);
      v.end = std::min(v.end, known_view_.end);
      v.holes = known_view_.holes;
      if (v.empty()) return v;
    }
    if (row.mask) {
      const int free = static_cast<int>(std::clamp<int64_t>(facts_->mask_begin - first_ - v.begin, 0, v.end - v.begin));
      const int64_t stride = facts_->mask_stride, at = first_ - facts_->mask_begin;  // of column 0; may be negative
      const uint8_t* mask = row.mask;
      if (stride == 1) narrow(v, free, [&](int c) { return mask[at + c] != 0; });
      else narrow(v, free, [&](int c) { return mask[(at + c) * stride] != 0; });
    }
    return v;
  }

  // Minus infinity at every hidden column of a row whose view has holes.
  template <class real> void hide_holes(const QueryRow& row, const RowView& view, real* s) const {
    constexpr real hidden = -std::numeric_limits<real>::infinity();
    if (facts_->segments)
      for (int c = view.begin; c < view.end; c++) s[c] = segments_[c] == row.segment ? s[c] : hidden;
    if (row.mask) {
      const int from = static_cast<int>(std::max<int64_t>(view.begin, facts_->mask_begin - first_));
      const int64_t stride = facts_->mask_stride, at = first_ - facts_->mask_begin;
      const uint8_t* mask = row.mask;
      if (stride == 1) for (int c = from; c < view.end; c++) s[c] = mask[at + c] ? s[c] : hidden;
      else for (int c = from; c < view.end; c++) s[c] = mask[(at + c) * stride] ? s[c] : hidden;
    }
  }

 private:
  int clamp(int64_t column) const { return static_cast<int>(std::clamp<int64_t>(column, 0, count_)); }

  const KeyFacts* facts_ = nullptr;
  int64_t first_ = 0;
  int count_ = 0;
  bool known_ = false;
  int32_t known_segment_ = 0;
  RowView known_view_;
  int32_t segments_[kMost];
};

}  // namespace tilewise
