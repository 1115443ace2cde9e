#include "forward.hpp"

#include <vector>

#include "forward_block.hpp"
#include "sequences.hpp"
#include "threads.hpp"

namespace tilewise {
namespace {

// Queries [begin, end) of a sequence, for every kv head.
// blank: rows that no sequence owns (then begin is an index in the array).
struct QueryPiece {
  DenseSequence sequence;
  int64_t begin = 0, end = 0, cost = 0;
  bool blank = false, few = false;
};

// The work of a call, in pieces of about equal size, the longest first. Bits do not depend on how it is cut.
struct Work {
  std::vector<QueryPiece> pieces;
  int64_t heads_at_once = 1, most_rows = 0, cost = 0;  // cost: visible pairs of one query head

  explicit Work(const AttentionArguments& a) {
    const int64_t group = a.q_heads / a.kv_heads;
    int64_t rows = 0;
    for (int64_t b = 0; b < a.batch; b++) rows += sequence_of(a, b).q_count * a.q_heads;
    const int64_t target = std::clamp<int64_t>(rows / (3 * num_threads()), kQueryBlock, 512);
    heads_at_once = std::min(group, target);
    const int64_t most = std::max<int64_t>(1, target / heads_at_once);
    pieces.reserve(a.batch + 4);
    for (int64_t b = 0; b < a.batch; b++) {
      const DenseSequence s = sequence_of(a, b);
      if (!a.q_starts && s.q_count < a.q_len) pieces.push_back({s, s.q_count, a.q_len, 0, true, false});
      if (s.q_count <= 0) continue;
      const int64_t parts = (s.q_count + most - 1) / most, even = (s.q_count + parts - 1) / parts;
      const int64_t each = (even + kTileRows - 1) / kTileRows * kTileRows;
      for (int64_t i = 0; i < s.q_count; i += each) {
        QueryPiece p{s, i, std::min(i + each, s.q_count), 0, false, s.q_count * group <= kFewQueries};
        const Range first = visible_keys(a.meaning, i, s.q_count, s.kv_count),
                    last = visible_keys(a.meaning, p.end - 1, s.q_count, s.kv_count);
        p.cost = (p.end - i) * (first.size() + last.size() + 1) / 2 + 1;
        cost += p.cost;
        most_rows = std::max(most_rows, (p.end - i) * heads_at_once);
        pieces.push_back(p);
      }
    }
    if (a.q_starts) {
      pieces.push_back({{}, 0, a.q_starts[0], 0, true, false});
      pieces.push_back({{}, a.q_starts[a.batch], a.q_len, 0, true, false});
    }
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const QueryPiece& x, const QueryPiece& y) { return x.cost > y.cost; });
  }
};

template <class T> struct StridedSource {
  using element = T;
  static constexpr bool scaled = false;
  const T *k, *v;
  int64_t k_stride, v_stride;
  void rows(int64_t first, int64_t count, const T** keys, const T** values) const {
    row_pointers(k + first * k_stride, k_stride, count, keys);
    row_pointers(v + first * v_stride, v_stride, count, values);
  }
};

template <class real, class T> void write_weighted(const real* acc, real weight, int64_t width, T* out) {
  constexpr int lanes = VectorOf<real>::lanes;
  int64_t e = 0;
  if (weight == 0) {  // sees nothing
    for (; e < width; e++) out[e] = from_float<T>(real{0});
    return;
  }
  for (; e + lanes <= width; e += lanes) store(out + e, load(acc + e) * splat(weight));
  for (; e < width; e++) out[e] = from_float<T>(acc[e] * weight);
}

template <class T, class Wide> class Forward {  // Wide: the unit of packed products; few queries use plain reals
  using real = typename Wide::real;
  using Narrow = std::conditional_t<std::is_same_v<real, double>, F64Unit, F32Unit>;

 public:
  explicit Forward(const AttentionArguments& arguments) : a_(arguments), work_(arguments) {
    biased_ = a_.bias != nullptr;
  }

  void run() {
    const int64_t group = a_.q_heads / a_.kv_heads;
    parts_ = (group + work_.heads_at_once - 1) / work_.heads_at_once;
    const int64_t each = a_.kv_heads * parts_;
    const int64_t flops = work_.cost * a_.q_heads * 2 * (a_.qk_dim + a_.v_dim);
    const int threads = static_cast<int>(std::clamp<int64_t>(flops / kFlopsWorthAThread, 1, num_threads()));
    parallel_for(static_cast<int64_t>(work_.pieces.size()) * each, [&](int64_t task, int) {
      const QueryPiece& piece = work_.pieces[task / each];
      const int64_t kv_head = task % each / parts_, part = task % parts_;
      const int64_t h0 = kv_head * group + part * work_.heads_at_once;
      const int64_t h1 = std::min(h0 + work_.heads_at_once, (kv_head + 1) * group);
      if (piece.blank) blank(piece, h0, h1);
      else if (piece.few) attend_piece<Narrow, true>(piece, kv_head, h0, h1);
      else attend_piece<Wide, false>(piece, kv_head, h0, h1);
    }, threads);
  }

 private:
  static constexpr int64_t kFlopsWorthAThread = 1000000;

  template <class U, bool few> void attend_piece(const QueryPiece& piece, int64_t kv_head, int64_t h0, int64_t h1) {
    const DenseSequence& s = piece.sequence;
    const int64_t queries = piece.end - piece.begin, D = a_.qk_dim, E = a_.v_dim;
    KeyFacts facts;
    if (a_.kv_segments) {
      facts.segments = a_.kv_segments + s.batch * a_.kv_segment_stride_b + s.kv_first * a_.kv_segment_stride_t;
      facts.segment_stride = a_.kv_segment_stride_t;
    }
    facts.mask_stride = a_.mask_strides.s;
    facts.bias_dtype = a_.bias_dtype;
    facts.bias_stride = a_.bias_strides.s;
    const Scoring<U> scoring(a_.meaning, D, E, biased_, false, facts);
    const StridedSource<T> source{
        static_cast<const T*>(a_.k) + s.batch * a_.ks.b + kv_head * a_.ks.h + s.kv_first * a_.ks.t,
        static_cast<const T*>(a_.v) + s.batch * a_.vs.b + kv_head * a_.vs.h + s.kv_first * a_.vs.t, a_.ks.t, a_.vs.t};

    const int64_t count = queries * (h1 - h0);
    Workspace workspace(QueryState<U>::bytes(count, D, E) + ForwardBlock<U, StridedSource<T>, few>::bytes(D, E));
    QueryState<U> rows(workspace, count, D, E);
    for (int64_t h = h0, r = 0; h < h1; h++)
      for (int64_t i = piece.begin; i < piece.end; i++, r++) {
        rows.row[r] = row_of(s, h, i);
        copy_words<U>(static_cast<const T*>(a_.q) + s.batch * a_.qs.b + h * a_.qs.h + (s.q_first + i) * a_.qs.t, D,
                      rows.q_row(r));
      }
    attend<U, StridedSource<T>, few>(scoring, source, rows, workspace);
    for (int64_t h = h0, r = 0; h < h1; h++)
      for (int64_t i = piece.begin; i < piece.end; i++, r++) {
        const real* sink = a_.sinks && rows.row[r].segment >= 0 ? static_cast<const real*>(a_.sinks) + h : nullptr;
        real lse;
        const real weight = finish_row(rows.m[r], rows.l[r], scoring.unit, sink, lse);
        write_weighted(rows.acc_row(r), weight, E, out(s.batch, h, s.q_first + i));
        if (a_.lse) *this->lse(s.batch, h, s.q_first + i) = lse;
      }
  }

  QueryRow row_of(const DenseSequence& s, int64_t h, int64_t i) const {
    QueryRow row;
    if (a_.q_segments) {
      row.segment = a_.q_segments[s.batch * a_.q_segment_stride_b + (s.q_first + i) * a_.q_segment_stride_t];
      if (row.segment < 0) return row;
    }
    const Range keys = visible_keys(a_.meaning, i, s.q_count, s.kv_count);
    row.begin = keys.begin;
    row.end = keys.end;
    const auto entry = [&](const Strides4& t) {
      return s.batch * t.b + h * t.h + (s.q_first + i) * t.t + s.kv_first * t.s;
    };
    if (a_.mask) row.mask = a_.mask + entry(a_.mask_strides);
    if (biased_) row.bias = static_cast<const char*>(a_.bias) + entry(a_.bias_strides) * bias_bytes();
    return row;
  }
  int64_t bias_bytes() const { return a_.bias_dtype == DType::f32 ? 4 : a_.bias_dtype == DType::f64 ? 8 : 2; }

  void blank(const QueryPiece& piece, int64_t h0, int64_t h1) {
    for (int64_t h = h0; h < h1; h++)
      for (int64_t i = piece.begin; i < piece.end; i++) {
        write_weighted<real>(nullptr, 0, a_.v_dim, out(piece.sequence.batch, h, i));
        if (a_.lse) *lse(piece.sequence.batch, h, i) = -std::numeric_limits<real>::infinity();
      }
  }
  T* out(int64_t b, int64_t h, int64_t t) const {
    return static_cast<T*>(a_.out) + b * a_.os.b + h * a_.os.h + t * a_.os.t;
  }
  real* lse(int64_t b, int64_t h, int64_t t) const {
    return static_cast<real*>(a_.lse) + b * a_.lse_strides.b + h * a_.lse_strides.h + t * a_.lse_strides.t;
  }

  const AttentionArguments& a_;
  Work work_;
  int64_t parts_ = 1;
  bool biased_ = false;
};

}  // namespace

void forward(const AttentionArguments& a) {
  if (a.q_heads == 0 || a.q_len == 0 || (a.batch == 0 && !a.q_starts)) return;
  switch (a.dtype) {
    case DType::bf16: return Forward<bf16, std::conditional_t<kHasBf16Dot, Bf16Unit, F32Unit>>(a).run();
    case DType::f16: return Forward<f16, F32Unit>(a).run();
    case DType::f64: return Forward<double, F64Unit>(a).run();
    default: return Forward<float, F32Unit>(a).run();
  }
}

}  // namespace tilewise
