// One query block against one key block: the five products and what lies between them.
//   S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q    dQ += dS K
// All five are `product`s. The transposed scores have queries as lanes; dS^T read by column gives dS for free.
#pragma once
#include <algorithm>

#include "score_gradient.hpp"

namespace tilewise::gradients {

constexpr int64_t kGradQueryBlock = 128;  // queries of a block
constexpr int64_t kGradKeyBlock = 128;    // keys whose ds wait for dQ
constexpr int64_t kKeyChunk = 24;         // keys scored at a time: s and dp stay in L1
constexpr int64_t kQueryRun = 24;         // queries of dQ that share a range of keys
// Off the power of two, or a column of ds lies in few L1 sets.
constexpr std::ptrdiff_t kScoreLd = kGradQueryBlock + 16;

template <class U> constexpr int64_t padded_width(int64_t n) {
  return (n + kUnitLanes<U> - 1) / kUnitLanes<U> * kUnitLanes<U>;
}

struct Widths { int64_t qk, v; };

// Which gradients are wanted of the products.
struct Wanted {
  bool dq, dk, dv, dbias;
  bool ds() const { return dq || dk || dbias; }
};

// A query block, packed. `rows` hold the caller's rows (absent ones replaced by zeros).
template <class U, class T> struct QueryBlock {
  using word = typename U::word;
  using real = typename U::real;
  int64_t count = 0;
  bool finite = true, absent = false;     // every element of q and dout; whether a row of the block is absent
  word *q_columns, *dout_columns;         // panels of queries, depth D and E
  word *q_rows, *dout_rows;               // panels of D and E, depth queries
  real *lse, *delta, *scaled_delta, *dq;  // [kGradQueryBlock]; dq [kGradQueryBlock, padded D]
  const T **q, **dout;                    // [kGradQueryBlock]

  static std::size_t bytes(Widths w) {
    const int64_t columns = panel_words<U>(kGradQueryBlock, w.qk) + panel_words<U>(kGradQueryBlock, w.v);
    const int64_t rows = panel_words<U>(w.qk, kGradQueryBlock) + panel_words<U>(w.v, kGradQueryBlock);
    return (columns + rows) * sizeof(word) + kGradQueryBlock * (3 + padded_width<U>(w.qk)) * sizeof(real) +
           2 * kGradQueryBlock * sizeof(T*) + 16 * 64;
  }
  template <class Space> void place(Space& space, Widths w) {
    q_columns = space.template take<word>(panel_words<U>(kGradQueryBlock, w.qk));
    dout_columns = space.template take<word>(panel_words<U>(kGradQueryBlock, w.v));
    q_rows = space.template take<word>(panel_words<U>(w.qk, kGradQueryBlock));
    dout_rows = space.template take<word>(panel_words<U>(w.v, kGradQueryBlock));
    lse = space.template take<real>(kGradQueryBlock);
    delta = space.template take<real>(kGradQueryBlock);
    scaled_delta = space.template take<real>(kGradQueryBlock);
    dq = space.template take<real>(kGradQueryBlock * padded_width<U>(w.qk));
    q = space.template take<const T*>(kGradQueryBlock);
    dout = space.template take<const T*>(kGradQueryBlock);
  }
  void pack(Widths w) {
    pack_transposed<U>(q, count, w.qk, q_columns);
    pack_transposed<U>(dout, count, w.v, dout_columns);
    finite = pack_rows<U>(q, count, w.qk, q_rows);
    finite &= pack_rows<U>(dout, count, w.v, dout_rows);
  }
  RowTerms<U> terms() const { return {lse, delta, scaled_delta}; }
};

// A key block, packed, with the sums it gathers.
template <class U, class T> struct KeyBlock {
  using word = typename U::word;
  using real = typename U::real;
  int64_t count = 0;
  bool finite = true;                     // every element of k and v
  word *k, *v;                            // rows of words: operand A
  word* k_rows;                           // panels of D, depth keys: operand B of dQ
  real *dk, *dv;                          // [kGradKeyBlock, padded D], [kGradKeyBlock, padded E]

  static std::size_t bytes(Widths w) {
    return (kGradKeyBlock * (words<U>(w.qk) + words<U>(w.v)) + panel_words<U>(w.qk, kGradKeyBlock)) * sizeof(word) +
           kGradKeyBlock * (padded_width<U>(w.qk) + padded_width<U>(w.v)) * sizeof(real) + 8 * 64;
  }
  template <class Space> void place(Space& space, Widths w) {
    k = space.template take<word>(kGradKeyBlock * words<U>(w.qk));
    v = space.template take<word>(kGradKeyBlock * words<U>(w.v));
    k_rows = space.template take<word>(panel_words<U>(w.qk, kGradKeyBlock));
    dk = space.template take<real>(kGradKeyBlock * padded_width<U>(w.qk));
    dv = space.template take<real>(kGradKeyBlock * padded_width<U>(w.v));
  }
  void pack(const T* k_base, int64_t k_stride, const T* v_base, int64_t v_stride, Widths w) {
    const T* rows[kGradKeyBlock];
    row_pointers(k_base, k_stride, count, rows);
    finite = pack_rows<U>(rows, count, w.qk, k_rows);
    for (int64_t r = 0; r < count; r++) {
      copy_words<U>(rows[r], w.qk, k + r * words<U>(w.qk));
      copy_words<U>(v_base + r * v_stride, w.v, v + r * words<U>(w.v));
    }
    using V = decltype(U::load(nullptr));
    V spoiled{};
    const int64_t size = count * words<U>(w.v), whole = size / kUnitLanes<U> * kUnitLanes<U>;
    for (int64_t i = 0; i < whole; i += kUnitLanes<U>) note_finite<U>(U::load(v + i), spoiled);
    V rest{};
    for (int64_t i = whole; i < size; i++) rest[i - whole] = v[i];
    note_finite<U>(rest, spoiled);
    finite &= all_finite(spoiled);
    std::fill_n(dk, count * padded_width<U>(w.qk), real{});
    std::fill_n(dv, count * padded_width<U>(w.v), real{});
  }
};

// Scratch of a pair of blocks.
template <class U> struct PairScratch {
  using real = typename U::real;
  using element = typename U::element;
  real *s, *dp;                           // [kKeyChunk, kScoreLd]
  element *p, *ds;                        // [kKeyChunk, kScoreLd], [kGradKeyBlock, kScoreLd]
  // [words(kGradKeyBlock), kScoreLd]: keys in pairs; ds itself where a word is an element
  typename U::word* ds_columns;
  real *bias, *dbias;                     // [kKeyChunk, kScoreLd]
  Integer<U>* keep;

  static std::size_t bytes() {
    const int64_t reals = kKeyChunk * 5 + kGradKeyBlock * 2, elements = kKeyChunk + kGradKeyBlock;
    return kScoreLd * (reals * sizeof(real) + elements * sizeof(element)) + 16 * 64;
  }
  template <class Space> void place(Space& space) {
    s = space.template take<real>(kKeyChunk * kScoreLd);
    dp = space.template take<real>(kKeyChunk * kScoreLd);
    p = space.template take<element>(kKeyChunk * kScoreLd);
    ds = space.template take<element>(kGradKeyBlock * kScoreLd);
    if constexpr (U::pair == 1) ds_columns = ds;
    else ds_columns = space.template take<typename U::word>(words<U>(kGradKeyBlock) * kScoreLd);
    bias = space.template take<real>(kKeyChunk * kScoreLd);
    dbias = space.template take<real>(kKeyChunk * kScoreLd);
    keep = space.template take<Integer<U>>(kKeyChunk * kScoreLd);
  }
};

// C[rows, width] += A B over all panels of B, `depth` words from word `first` on.
template <class U, class Walk>
TW_INLINE void add_product(Walk walk, int64_t rows, int64_t width, int64_t first, int64_t depth,
                           const typename U::word* a, const typename U::word* b, int64_t panel_depth,
                           typename U::real* c) {
  const std::ptrdiff_t ld = padded_width<U>(width);
  for (int64_t e = 0; e < width; e += kPanel<U>) {
    const int64_t left = (ld - e) / kUnitLanes<U>;
    const int vectors = static_cast<int>(std::min<int64_t>(left, kTileVectors));
    product<U, Start::add>(walk, rows, vectors, depth, walk.at(a, 0, first), b + e * panel_depth + first * kPanel<U>,
                           kPanel<U>, c + e, ld);
  }
}

// out[rows, from .. to) = A B for lanes [from, to) of B's panels; both are multiples of a vector.
template <class U>
TW_INLINE void transposed_scores(const typename U::word* a, int64_t depth, int64_t rows,
                                 const typename U::word* columns, int64_t from, int64_t to, typename U::real* out) {
  for (int64_t i = from; i < to;) {
    const int64_t panel = i / kPanel<U>, end = std::min(to, (panel + 1) * kPanel<U>);
    product<U, Start::zero>(ByRow{depth}, rows, static_cast<int>((end - i) / kUnitLanes<U>), depth, a,
                            columns + panel * depth * kPanel<U> + i % kPanel<U>, kPanel<U>, out + i, kScoreLd);
    i = end;
  }
}

// Rows of ds, two by two, as words whose pairs run over keys.
template <class U>
TW_INLINE void pair_key_rows(const typename U::element* ds, int64_t rows, int64_t queries, typename U::word* out) {
  if constexpr (U::pair == 2)
    for (int64_t r = 0; r < rows; r += 2)
      for (int64_t i = 0; i < queries; i += kLanes) {
        const u16v low = load_as<u16v>(ds + r * kScoreLd + i);
        const u16v high = r + 1 < rows ? load_as<u16v>(ds + (r + 1) * kScoreLd + i) : u16v{};
        const u32v w = interleave(low, high);
        std::memcpy(out + r / 2 * kScoreLd + i, &w, sizeof w);
      }
}

// dV += P^T dO and dK += dS^T Q for a chunk of keys starting at `key`, over queries [from, to).
template <class U, class T>
TW_INLINE void add_key_sums(const Chunk<U>& c, int64_t key, int64_t rows, int64_t from, int64_t to,
                            const QueryBlock<U, T>& queries, KeyBlock<U, T>& keys, Widths w, Wanted wanted) {
  const int64_t depth = words<U>(queries.count), first = from / U::pair, last = std::min(depth, to / U::pair);
  const ByRow walk{c.ld / U::pair};
  const auto words_of = [](const typename U::element* x) { return reinterpret_cast<const typename U::word*>(x); };
  if (wanted.dv)
    add_product<U>(walk, rows, w.v, first, last - first, words_of(c.p), queries.dout_rows, depth,
                   keys.dv + key * padded_width<U>(w.v));
  if (wanted.dk)
    add_product<U>(walk, rows, w.qk, first, last - first, words_of(c.ds), queries.q_rows, depth,
                   keys.dk + key * padded_width<U>(w.qk));
}

// The same and dQ, one visible pair at a time: hidden NaN and Inf are never touched. Rare, so plain.
template <class U, class T>
TW_NOINLINE void add_pair_by_pair(const Chunk<U>& c, int64_t key, int64_t rows, int64_t from, int64_t to,
                                  const QueryBlock<U, T>& queries, KeyBlock<U, T>& keys, const T* const* k, Widths w,
                                  Wanted wanted) {
  using real = typename U::real;
  for (int64_t r = 0; r < rows; r++) {
    real* dk = keys.dk + (key + r) * padded_width<U>(w.qk);
    real* dv = keys.dv + (key + r) * padded_width<U>(w.v);
    for (int64_t i = from; i < std::min(to, queries.count); i++) {
      if (!c.keep[r * c.ld + i]) continue;
      const real p = to_float(c.p[r * c.ld + i]), ds = to_float(c.ds[r * c.ld + i]);
      real* dq = queries.dq + i * padded_width<U>(w.qk);
      if (wanted.dv)
        for (int64_t e = 0; e < w.v; e++) dv[e] += p * static_cast<real>(to_float(queries.dout[i][e]));
      if (wanted.dk)
        for (int64_t d = 0; d < w.qk; d++) dk[d] += ds * static_cast<real>(to_float(queries.q[i][d]));
      if (wanted.dq)
        for (int64_t d = 0; d < w.qk; d++) dq[d] += ds * static_cast<real>(to_float(k[key + r][d]));
    }
  }
}

}  // namespace tilewise::gradients
