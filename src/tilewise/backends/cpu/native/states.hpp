// Partial states of the softmax: (m, l, acc) of the same rows over different keys, and the rows they become.
// m counts powers of two (-inf: nothing seen), l and acc are relative to it.
#pragma once
#include <cmath>

#include "logits.hpp"
#include "page_batch.hpp"
#include "rows.hpp"
#include "workspace.hpp"

namespace tilewise {


// Rows of a piece of work: kv heads, then queries, then the query heads of a group.
struct RowBlock {
  PagedSequence seq;
  int64_t first_query = 0, queries = 0, head = 0, heads = 0, group = 1;
  int64_t rows_of_head() const { return queries * group; }
  int64_t rows() const { return heads * rows_of_head(); }
  int64_t token(int64_t row) const { return seq.first_token + first_query + row % rows_of_head() / group; }
  int64_t kv_head(int64_t row) const { return head + row / rows_of_head(); }
  int64_t q_head(int64_t row) const { return kv_head(row) * group + row % group; }
};

struct State {  // of all rows of a RowBlock
  float *m, *l, *acc;
  static constexpr int64_t floats(int64_t rows, int64_t columns) { return rows * (columns + 2); }
  State(float* at, int64_t rows, int64_t padded) : m(at + rows * padded), l(m + rows), acc(at) {}
};

TW_INLINE float power_of_two(float x) { return exp2v(splat(x))[0]; }

// Merges `count` states, which lie one after another, in their order; adds the sink; writes out and lse.
template <class W> void finish(const PagedArguments& a, const RowBlock& block, float* at0, int64_t count) {
  const int64_t rows = block.rows(), columns = padded_columns<W>(a.v_dim), floats = State::floats(rows, columns);
  const auto state = [&](int64_t i) { return State(at0 + i * floats, rows, columns); };
  Workspace space(2 * Workspace::padded(static_cast<std::size_t>(columns) * sizeof(float)));
  float* sum = space.take<float>(static_cast<std::size_t>(columns));
  float* row = space.take<float>(static_cast<std::size_t>(columns));
  for (int64_t r = 0; r < rows; r++) {
    const int64_t q_head = block.q_head(r), token = block.token(r);
    const float sink = a.sinks ? static_cast<const float*>(a.sinks)[q_head] * static_cast<float>(kLog2e) : -INFINITY;
    float m = sink, seen = 0.0f;
    for (int64_t i = 0; i < count; i++) m = state(i).m[r] > m || std::isnan(state(i).m[r]) ? state(i).m[r] : m;
    const float base = m == -INFINITY ? 0.0f : m;
    std::memset(sum, 0, static_cast<std::size_t>(columns) * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
      const State part = state(i);
      if (part.l[r] == 0.0f) continue;  // it saw nothing
      const float w = power_of_two(part.m[r] - base);
      seen += w * part.l[r];
      for (int64_t e = 0; e < columns; e += kLanes)
        store(sum + e, load(sum + e) + load(part.acc + r * columns + e) * splat(w));
    }
    const float l = seen + power_of_two(sink - base);
    float factor = W::factor / l;
    if (a.pages.v_scale.value && !per_slot(a.pages.v_scale)) factor *= scale_at(a.pages.v_scale, {}, block.kv_head(r));
    const int64_t at = token * a.os.t + q_head * a.os.h;
    if (l == 0.0f) zero_row(a.dtype, a.v_dim, a.out, at);
    else {
      for (int64_t e = 0; e < columns; e += kLanes) store(sum + e, load(sum + e) * splat(factor));
      for (int64_t e = 0; e < columns; e += W::group) unplace_values<W>(sum + e, row + e);
      store_row(a.dtype, row, a.v_dim, a.out, at);
    }
    if (a.lse)
      static_cast<float*>(a.lse)[q_head * a.lse_strides.h + token * a.lse_strides.t] =
          l == 0.0f ? -INFINITY
                    : static_cast<float>((static_cast<double>(base) + std::log2(static_cast<double>(l))) * kLn2);
  }
}

}  // namespace tilewise
