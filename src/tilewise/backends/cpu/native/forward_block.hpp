// The forward core: rows of queries meet the keys and values of one head, a block of keys at a time.
//
//   QueryState<U> rows(workspace, count, D, E);    // fill rows.row[r] (visibility) and rows.q_row(r) (copy_words)
//   attend(scoring, source, rows, scratch);        // any number of times, keys in any split: the state gathers
//   real weight = finish_row(rows.m[r], rows.l[r], scoring.unit, sink, lse);   // out = weight * rows.acc_row(r)
//
// A Source says where keys lie; nothing else here knows (a stride, a page table):
//   using element = T;                                             // storage of K and V: pack.hpp says what T needs
//   static constexpr bool scaled;                                  // K, V = stored * scale, one scale a key
//   void rows(int64_t first, int64_t count, const T** keys, const T** values) const;
//   void scales(int64_t first, int64_t count, real* key_scale, real* value_scale) const;          // if scaled
// It is asked only for keys between the first and the last that some row sees by arithmetic (QueryRow::begin, end).
//
// Each block of keys is packed once and met by every row: give attend all rows (heads of the group x positions) that
// fit a cache, a few hundred. A row's bits do not depend on the other rows: blocks begin at multiples of kKeyBlock.
#pragma once
#include <cstdlib>

#include "few_queries.hpp"
#include "online_softmax.hpp"
#include "visibility.hpp"
#include "workspace.hpp"

namespace tilewise {

constexpr int kQueryBlock = 96, kKeyBlock = 256, kFewQueries = 8;
static_assert(kQueryBlock % kTileRows == 0 && kKeyBlock <= BlockVisibility::kMost);

template <class U> struct Scoring {  // how a call turns products into logits
  using real = typename U::real;
  int64_t qk_dim, v_dim;
  LogitRule<real> rule;
  bool biased;
  bool natural;         // logits are made in a pass of their own (rule); else: product * rule.factor, in base 2
  double unit = 1;      // of m, in natural logits; undoes the rounding of rule.factor too, or lse would miss p's scale
  KeyFacts facts;

  Scoring(const Meaning& meaning, int64_t D, int64_t E, bool has_bias, bool scaled, const KeyFacts& key_facts)
      : qk_dim(D), v_dim(E), biased(has_bias),
        natural(has_bias || scaled || meaning.softcap > 0 || !(meaning.scale > 0)), facts(key_facts) {
    rule.factor = static_cast<real>(natural ? meaning.scale : meaning.scale * kLog2e);
    if (!natural) unit = meaning.scale / static_cast<double>(rule.factor);
    rule.cap = static_cast<real>(meaning.softcap);
    if (meaning.softcap > 0) rule.inner = static_cast<real>(meaning.scale / meaning.softcap);
  }
};

// Rows of queries and what they have gathered so far: nothing, at first.
template <class U> class QueryState {
 public:
  using word = typename U::word;
  using real = typename U::real;
  int64_t count, q_ld, acc_ld;
  QueryRow* row;
  word* q;
  real *m, *l, *acc;

  static std::size_t bytes(int64_t count, int64_t D, int64_t E) {
    const auto size = [](int64_t n) { return Workspace::padded(static_cast<std::size_t>(n)); };
    return size(count * sizeof(QueryRow)) + size(count * words<U>(D) * sizeof(word)) + 2 * size(count * sizeof(real)) +
           size(count * whole(E) * sizeof(real));
  }
  QueryState(Workspace& workspace, int64_t rows, int64_t D, int64_t E)
      : count(rows), q_ld(words<U>(D)), acc_ld(whole(E)), row(workspace.take<QueryRow>(rows)),
        q(workspace.take<word>(rows * q_ld)), m(workspace.take<real>(rows)), l(workspace.take<real>(rows)),
        acc(workspace.take<real>(rows * acc_ld)) {
    std::fill(row, row + rows, QueryRow{});
    std::fill(m, m + rows, -std::numeric_limits<real>::infinity());
    std::fill(l, l + rows, real{0});
    std::fill(acc, acc + rows * acc_ld, real{0});
  }
  word* q_row(int64_t r) { return q + r * q_ld; }
  real* acc_row(int64_t r) { return acc + r * acc_ld; }

 private:
  static int64_t whole(int64_t E) { return (E + kUnitLanes<U> - 1) / kUnitLanes<U> * kUnitLanes<U>; }
};

// few: keys and values are read in place (few_queries.hpp); U must then be F32Unit or F64Unit.
template <class U, class Source, bool few> class ForwardBlock {
  using word = typename U::word;
  using real = typename U::real;
  using T = typename Source::element;
  static constexpr int kLanesU = kUnitLanes<U>, kLd = kKeyBlock + 16, kGroups = kQueryBlock / kTileRows;
  static constexpr int64_t kChain = 128;  // words a score is summed over at a time: longer chains of fma lose accuracy
  static constexpr int64_t kRows = few ? kFewQueries : kQueryBlock;

 public:
  static std::size_t bytes(int64_t D, int64_t E) {
    const std::size_t panels_size = few ? 0 : Workspace::padded(panel_words<U>(kKeyBlock, D) * sizeof(word)) +
                                                  Workspace::padded(panel_words<U>(E, kKeyBlock) * sizeof(word));
    return panels_size + Workspace::padded(kRows * kLd * sizeof(real)) + 4 * Workspace::padded(kLd * sizeof(real)) +
           3 * Workspace::padded(kKeyBlock * sizeof(const T*));
  }
  ForwardBlock(const Scoring<U>& scoring, const Source& source, QueryState<U>& rows, Workspace& workspace)
      : how_(scoring), source_(source), q_(rows), s_(workspace.take<real>(kRows * kLd)),
        bias_(workspace.take<real>(kLd)), key_scale_(workspace.take<real>(kLd)),
        value_scale_(workspace.take<real>(kLd)), compact_(workspace.take<real>(kLd)),
        keys_(workspace.take<const T*>(kKeyBlock)), values_(workspace.take<const T*>(kKeyBlock)),
        compact_values_(workspace.take<const T*>(kKeyBlock)) {
    if constexpr (!few) {
      k_ = workspace.take<word>(panel_words<U>(kKeyBlock, scoring.qk_dim));
      v_ = workspace.take<word>(panel_words<U>(scoring.v_dim, kKeyBlock));
    }
    // Columns past a row's bias, and past the block's keys, are hidden later; they only must not be uninitialised.
    if (how_.natural) std::fill(bias_, bias_ + kLd, real{0});
    if constexpr (Source::scaled) {
      std::fill(key_scale_, key_scale_ + kLd, real{1});
      std::fill(value_scale_, value_scale_ + kLd, real{1});
    }
  }

  // Keys [first, first + count), count <= kKeyBlock, first a multiple of kKeyBlock. No row sees the first `skip`.
  void meet(int64_t first, int skip, int count) {
    first_ = first;
    skip_ = skip;
    count_ = count;
    ready_ = false;
    visible_.open(how_.facts, first, count);
    for (int64_t r = 0; r < q_.count; r += kRows) step(r, static_cast<int>(std::min(kRows, q_.count - r)));
  }

 private:
  struct Group {          // kTileRows rows: the columns that any of them sees
    int begin, end, rows;
    bool even;            // every row sees all of them
    bool careful;         // P V must skip what is hidden: some value there is not finite
  };

  void step(int64_t r0, int rows) {
    r0_ = r0;
    groups_ = 0;
    bool any = false;
    for (int g = 0; g < rows; g += kTileRows, groups_++) {
      Group& group = group_[groups_];
      group = Group{kKeyBlock, 0, std::min(kTileRows, rows - g), true, false};
      for (int r = g; r < g + group.rows; r++) {
        view_[r] = visible_.view(q_.row[r0 + r]);
        if (view_[r].empty()) continue;
        group.begin = std::min(group.begin, view_[r].begin);
        group.end = std::max(group.end, view_[r].end);
      }
      for (int r = g; r < g + group.rows; r++)
        group.even &= !view_[r].holes && view_[r].begin == group.begin && view_[r].end == group.end;
      any |= group.begin < group.end;
    }
    if (!any) return;
    if (!ready_) open_keys();
    scores();
    for (int g = 0; g < groups_; g++)
      if (group_[g].begin < group_[g].end) soften(g);
    values();
  }

  void open_keys() {
    ready_ = true;
    // Keys that no row sees are not asked for: their pages may be gone. The first seen one stands in for them.
    source_.rows(first_ + skip_, count_ - skip_, keys_ + skip_, values_ + skip_);
    std::fill(keys_, keys_ + skip_, keys_[skip_]);
    std::fill(values_, values_ + skip_, values_[skip_]);
    if constexpr (Source::scaled) {
      source_.scales(first_ + skip_, count_ - skip_, key_scale_ + skip_, value_scale_ + skip_);
      std::fill(key_scale_, key_scale_ + skip_, key_scale_[skip_]);
      std::fill(value_scale_, value_scale_ + skip_, value_scale_[skip_]);
    }
    if constexpr (!few) {
      pack_transposed<U>(keys_, count_, how_.qk_dim, k_);
      finite_ = pack_rows<U>(values_, count_, how_.v_dim, v_);
    }
  }

  void scores() {
    if constexpr (few) {
      int begin = kKeyBlock, end = 0, rows = 0;
      for (int g = 0; g < groups_; g++) {
        begin = std::min(begin, group_[g].begin);
        end = std::max(end, group_[g].end);
        rows += group_[g].rows;
      }
      few_scores<U>(rows, q_.q_row(r0_), q_.q_ld, keys_ + begin, end - begin, how_.qk_dim, s_ + begin, kLd);
    } else {
      const int64_t depth = words<U>(how_.qk_dim);
      for (int c = 0; c < count_; c += kPanel<U>) {
        const word* panel = k_ + c * depth;
        int run = 0, run_rows = 0;  // groups in a row that need the whole panel
        const auto flush = [&] {
          if (run_rows) multiply(run, run_rows, kTileVectors, depth, panel, c);
          run_rows = 0;
        };
        for (int g = 0; g < groups_; g++) {
          const int v0 = (std::max(group_[g].begin, c) - c) / kLanesU;
          const int v1 = (std::min(group_[g].end, c + kPanel<U>) - c + kLanesU - 1) / kLanesU;
          if (v0 == 0 && v1 == kTileVectors) {
            if (!run_rows) run = g;
            run_rows += group_[g].rows;
          } else {
            flush();
            if (v0 < v1) multiply(g, group_[g].rows, v1 - v0, depth, panel + v0 * kLanesU, c + v0 * kLanesU);
          }
        }
        flush();
      }
    }
  }
  void multiply(int g, int rows, int vectors, int64_t depth, const word* panel, int column) {
    const int64_t r = g * kTileRows;
    real* s = s_ + r * kLd + column;
    const word* q = q_.q_row(r0_ + r);
    product<U, Start::zero>(ByRow{q_.q_ld}, rows, vectors, std::min(depth, kChain), q, panel, kPanel<U>, s, kLd);
    for (int64_t k = kChain; k < depth; k += kChain)
      product<U, Start::add>(ByRow{q_.q_ld}, rows, vectors, std::min(depth - k, kChain), q + k, panel + k * kPanel<U>,
                             kPanel<U>, s, kLd);
  }

  void soften(int g) {
    Group& group = group_[g];
    const int v0 = group.begin / kLanesU, v1 = (group.end + kLanesU - 1) / kLanesU;
    const bool biased = how_.biased;
    const bool split = U::pair == 2 && ((group.begin | group.end) & 1);  // a pair is half hidden
    group.careful = few ? !group.even || biased : !finite_ && (!group.even || biased || split);
    for (int r = g * kTileRows; r < g * kTileRows + group.rows; r++) {
      const QueryRow& row = q_.row[r0_ + r];
      const RowView& view = view_[r];
      real* s = s_ + r * kLd;
      if (how_.natural) {
        if (biased) read_bias(row, view);
        to_logits(how_.rule, v0, v1, s, Source::scaled ? key_scale_ : nullptr, biased ? bias_ : nullptr);
      }
      if (view.holes) visible_.hide_holes(row, view, s);
      hide(s, v0 * kLanesU, view.empty() ? v1 * kLanesU : view.begin);
      if (!view.empty()) hide(s, view.end, v1 * kLanesU);
      top_[r] = row_max(s, v0, v1);
    }
    for (int r = g * kTileRows; r < g * kTileRows + group.rows; r++)
      alpha_[r] = how_.natural ? raise_max<real, true>(top_[r], how_.rule.factor, q_.m[r0_ + r])
                               : raise_max<real, false>(top_[r], how_.rule.factor, q_.m[r0_ + r]);
    if (Source::scaled) exponentiate_rows<true, Source::scaled, true>(g, v0, v1);
    else if (how_.natural) group.careful ? exponentiate_rows<true, false, true>(g, v0, v1)
                                         : exponentiate_rows<true, false, false>(g, v0, v1);
    else
      group.careful ? exponentiate_rows<false, false, true>(g, v0, v1)
                    : exponentiate_rows<false, false, false>(g, v0, v1);
  }
  static void hide(real* s, int from, int to) {
    for (int c = from; c < to; c++) s[c] = -std::numeric_limits<real>::infinity();
  }
  template <bool natural, bool scaled, bool careful> TW_NOINLINE void exponentiate_rows(int g, int v0, int v1) {
    for (int r = g * kTileRows; r < g * kTileRows + group_[g].rows; r++) {
      real& l = q_.l[r0_ + r];
      l = l * alpha_[r] + exponentiate<U, natural, careful, scaled>(s_ + r * kLd, v0, v1, q_.m[r0_ + r],
                                                                    how_.rule.factor, value_scale_);
    }
  }
  void read_bias(const QueryRow& row, const RowView& view) {
    if (view.empty() || (row.bias == bias_row_ && first_ == bias_first_ && view.begin >= bias_view_.begin &&
                         view.end <= bias_view_.end))
      return;
    load_bias(row.bias, how_.facts.bias_dtype, how_.facts.bias_stride, first_, view.begin, view.end, bias_);
    bias_row_ = row.bias;
    bias_first_ = first_;
    bias_view_ = view;
  }

  void values() {
    if constexpr (few) {
      for (int g = 0; g < groups_; g++) few_group(g);
    } else {
      for (int64_t e = 0; e < how_.v_dim; e += kPanel<U>) {
        const word* panel = v_ + e * words<U>(count_);
        const int vectors = static_cast<int>(std::min<int64_t>(kTileVectors, (how_.v_dim - e + kLanesU - 1) / kLanesU));
        for (int g = 0, next; g < groups_; g = next) {
          const Group& group = group_[g];
          int rows = group.rows;
          for (next = g + 1; next < groups_ && same(group, group_[next]); next++) rows += group_[next].rows;
          if (group.begin >= group.end) continue;
          const int64_t k = group.begin / U::pair, depth = words<U>(group.end) - k, r = g * kTileRows;
          const word* p = reinterpret_cast<const word*>(s_ + r * kLd) + k;
          real* acc = q_.acc_row(r0_ + r) + e;
          if (group.careful) careful_values(rows, vectors, depth, p, panel + k * kPanel<U>, acc, alpha_ + r);
          else
            product<U, Start::scale>(ByRow{kLd}, rows, vectors, depth, p, panel + k * kPanel<U>, kPanel<U>, acc,
                                     q_.acc_ld, alpha_ + r);
        }
      }
    }
  }
  static bool same(const Group& a, const Group& b) {
    return a.begin == b.begin && a.end == b.end && a.careful == b.careful;
  }

  // The same chain of fma, hidden keys (p is -0) left out: their value may be anything.
  TW_NOINLINE void careful_values(int rows, int vectors, int64_t depth, const word* p, const word* panel, real* acc,
                                  const real* alpha) {
    for (int r = 0; r < rows; r++)
      for (int n = 0; n < vectors; n++) {
        real* out = acc + r * q_.acc_ld + n * kLanesU;
        auto a = load(out) * splat(alpha[r]);
        for (int64_t k = 0; k < depth; k++) {
          auto x = U::splat(p + r * kLd + k);
          auto v = U::load(panel + k * kPanel<U> + n * kLanesU);
          if constexpr (U::pair == 2) {
            const uint32_t w = load_as<uint32_t>(p + r * kLd + k);
            const uint32_t seen = (w & 0x8000u ? 0u : 0xffffu) | (w >> 31 ? 0u : 0xffff0000u);
            x &= seen;
            v &= seen;
          } else if (std::signbit(p[r * kLd + k])) continue;
          a = U::fma(x, v, a);
        }
        store(out, a);
      }
  }
  void few_group(int g) {
    const Group& group = group_[g];
    if (group.begin >= group.end) return;
    const int64_t r = g * kTileRows, count = group.end - group.begin;
    real *acc = q_.acc_row(r0_ + r), *p = s_ + r * kLd + group.begin;
    if (!group.careful)
      return few_values<U>(group.rows, p, kLd, values_ + group.begin, count, how_.v_dim, acc, q_.acc_ld, alpha_ + r);
    for (int i = 0; i < group.rows; i++) {
      int kept = 0;
      for (int64_t k = 0; k < count; k++)
        if (!std::signbit(p[i * kLd + k])) {
          compact_[kept] = p[i * kLd + k];
          compact_values_[kept++] = values_[group.begin + k];
        }
      few_values<U>(1, compact_, kLd, compact_values_, kept, how_.v_dim, acc + i * q_.acc_ld, q_.acc_ld,
                    alpha_ + r + i);
    }
  }

  const Scoring<U>& how_;
  const Source& source_;
  QueryState<U>& q_;
  real *s_, *bias_, *key_scale_, *value_scale_, *compact_;
  const T **keys_, **values_, **compact_values_;
  word *k_ = nullptr, *v_ = nullptr;
  int64_t first_ = 0, r0_ = 0;
  int skip_ = 0, count_ = 0, groups_ = 0;
  bool ready_ = false, finite_ = true;
  const void* bias_row_ = nullptr;
  int64_t bias_first_ = -1;
  RowView bias_view_;
  BlockVisibility visible_;
  RowView view_[kQueryBlock];
  Group group_[kGroups];
  real alpha_[kQueryBlock], top_[kQueryBlock];
};

template <class U, class Source, bool few>
void attend(const Scoring<U>& scoring, const Source& source, QueryState<U>& rows, Workspace& workspace) {
  int64_t begin = kOpen, end = 0;
  for (int64_t r = 0; r < rows.count; r++)
    if (rows.row[r].begin < rows.row[r].end) {
      begin = std::min(begin, rows.row[r].begin);
      end = std::max(end, rows.row[r].end);
    }
  ForwardBlock<U, Source, few> block(scoring, source, rows, workspace);
  for (int64_t first = begin / kKeyBlock * kKeyBlock; first < end; first += kKeyBlock)
    block.meet(first, static_cast<int>(std::max<int64_t>(0, begin - first)),
               static_cast<int>(std::min<int64_t>(kKeyBlock, end - first)));
}

}  // namespace tilewise
