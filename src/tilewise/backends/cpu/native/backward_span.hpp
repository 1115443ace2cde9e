// One task's work: a span of keys against every query block that sees some of it.
#pragma once
#include "backward_plan.hpp"
#include "bias_gradient.hpp"
#include "delta.hpp"
#include "workspace.hpp"

namespace tilewise::gradients {

// What all tasks of a call share.
template <class U, class T> struct BackwardCall {
  using real = typename U::real;
  const BackwardArguments& b;
  Widths w;
  Wanted wanted;
  RowArrays<real> rows{};
  BiasGradient<real> dbias;
  Gates* gates = nullptr;
  real* narrow_dq = nullptr;  // dq before rounding, where the output is narrower than real

  explicit BackwardCall(const BackwardArguments& arguments)
      : b(arguments), w{b.forward.qk_dim, b.forward.v_dim},
        wanted{b.dq != nullptr, b.dk != nullptr, b.dv != nullptr, b.dbias != nullptr}, dbias(arguments) {}
  static constexpr bool narrow = sizeof(T) < sizeof(real);
  int64_t group() const { return b.forward.q_heads / b.forward.kv_heads; }
  bool ordered() const { return wanted.dq || dbias.kind == BiasGradient<real>::Kind::row; }
};

template <class U, class T> class SpanWork {
  using real = typename U::real;

 public:
  static std::size_t bytes(const BackwardCall<U, T>& c, int64_t blocks) {
    return QueryBlock<U, T>::bytes(c.w) + blocks * KeyBlock<U, T>::bytes(c.w) + PairScratch<U>::bytes() +
           std::max(c.w.qk, c.w.v) * sizeof(T) + kGradQueryBlock * sizeof(real) + 4 * 64;
  }
  SpanWork(const BackwardCall<U, T>& call, int64_t blocks) : call_(call), space_(bytes(call, blocks)), blocks_(blocks) {
    queries_.place(space_, call.w);
    for (int64_t i = 0; i < blocks; i++) keys_[i].place(space_, call.w);
    scratch_.place(space_);
    zeros_ = space_.template take<T>(std::max(call.w.qk, call.w.v));
    std::fill_n(zeros_, std::max(call.w.qk, call.w.v), T{});
    row_sums_ = space_.template take<real>(kGradQueryBlock);
  }

  void run(const Unit& unit, int64_t span) {
    const AttentionArguments& a = call_.b.forward;
    const DenseSequence& s = unit.sequence;
    const Range keys{span * blocks_ * kGradKeyBlock, std::min(s.kv_count, (span + 1) * blocks_ * kGradKeyBlock)};
    if (keys.empty()) return;
    pack_keys(unit, keys);
    const Range seen = queries_seeing(s, a.meaning, keys);
    if (!seen.empty())
      for (int64_t g = 0; g < call_.group(); g++) {
        const int64_t head = unit.kv_head * call_.group() + g;
        const PairVisibility pairs = pair_visibility(a, s, head);
        for (int64_t n = (seen.end - 1) / kGradQueryBlock; n >= seen.begin / kGradQueryBlock; n--)
          query_block(unit, span, keys, head, g, n, pairs);
      }
    store_keys(unit, keys);
  }

 private:
  // ---- keys -------------------------------------------------------------------------------------------------------
  static const T* row(const void* base, const Strides& st, int64_t b, int64_t h, int64_t t) {
    return static_cast<const T*>(base) + b * st.b + h * st.h + t * st.t;
  }
  void pack_keys(const Unit& u, Range keys) {
    const AttentionArguments& a = call_.b.forward;
    const DenseSequence& s = u.sequence;
    for (int64_t i = 0, key = keys.begin; i < blocks_; i++, key += kGradKeyBlock) {
      keys_[i].count = std::max<int64_t>(0, std::min(kGradKeyBlock, keys.end - key));
      if (keys_[i].count)
        keys_[i].pack(row(a.k, a.ks, s.batch, u.kv_head, s.kv_first + key), a.ks.t,
                      row(a.v, a.vs, s.batch, u.kv_head, s.kv_first + key), a.vs.t, call_.w);
    }
  }
  static void round_row(const real* x, int64_t n, T* out) {
    for (int64_t i = 0; i < n; i++) out[i] = from_float<T>(x[i]);
  }
  void store_keys(const Unit& u, Range keys) {
    const DenseSequence& s = u.sequence;
    for (int64_t j = keys.begin; j < keys.end; j++) {
      const KeyBlock<U, T>& block = keys_[(j - keys.begin) / kGradKeyBlock];
      const int64_t r = (j - keys.begin) % kGradKeyBlock, t = s.kv_first + j;
      if (call_.b.dk)
        round_row(block.dk + r * padded_width<U>(call_.w.qk), call_.w.qk,
                  const_cast<T*>(row(call_.b.dk, call_.b.dks, s.batch, u.kv_head, t)));
      if (call_.b.dv)
        round_row(block.dv + r * padded_width<U>(call_.w.v), call_.w.v,
                  const_cast<T*>(row(call_.b.dv, call_.b.dvs, s.batch, u.kv_head, t)));
    }
  }

  // ---- queries ----------------------------------------------------------------------------------------------------
  void pack_queries(const DenseSequence& s, int64_t head, int64_t first) {
    const BackwardArguments& b = call_.b;
    QueryBlock<U, T>& q = queries_;
    q.count = std::min(kGradQueryBlock, s.q_count - first);
    q.absent = false;
    const int64_t at = RowArrays<real>::at(b.forward, s, head) + first;
    const real scale = static_cast<real>(b.forward.meaning.scale);
    for (int64_t i = 0; i < kGradQueryBlock; i++) {
      const bool inside = i < q.count;
      const real lse = inside ? call_.rows.lse[at + i] : std::numeric_limits<real>::infinity();
      const bool absent = lse == std::numeric_limits<real>::infinity();
      q.lse[i] = lse;
      q.delta[i] = inside ? call_.rows.delta[at + i] : 0;
      q.scaled_delta[i] = q.delta[i] * scale;
      if (!inside) continue;
      q.absent |= absent;
      q.q[i] = absent ? zeros_ : row(b.forward.q, b.forward.qs, s.batch, head, s.q_first + first + i);
      q.dout[i] = absent ? zeros_ : row(b.dout, b.dout_strides, s.batch, head, s.q_first + first + i);
      if (!absent && call_.rows.factor[at + i] != 1) q.dout[i] = scaled(i, q.dout[i], call_.rows.factor[at + i]);
    }
    q.pack(call_.w);
  }
  const T* scaled(int64_t i, const T* dout, real factor) {
    scaled_dout_.resize(kGradQueryBlock * call_.w.v);
    T* to = scaled_dout_.data() + i * call_.w.v;
    for (int64_t e = 0; e < call_.w.v; e++) to[e] = from_float<T>(static_cast<real>(to_float(dout[e])) * factor);
    return to;
  }
  real* dq_row(const Unit& u, int64_t g, int64_t i) const {
    const int64_t head = u.kv_head * call_.group() + g;
    if constexpr (BackwardCall<U, T>::narrow)
      return call_.narrow_dq + (u.dq_rows + g * u.sequence.q_count + i) * call_.w.qk;
    else
      return const_cast<real*>(row(call_.b.dq, call_.b.dqs, u.sequence.batch, head, u.sequence.q_first + i));
  }
  void load_dq(const Unit& u, int64_t g, int64_t first, bool fresh) {
    const int64_t ld = padded_width<U>(call_.w.qk);
    if (fresh) return void(std::fill_n(queries_.dq, queries_.count * ld, real{}));
    for (int64_t i = 0; i < queries_.count; i++) {
      std::copy_n(dq_row(u, g, first + i), call_.w.qk, queries_.dq + i * ld);
      std::fill(queries_.dq + i * ld + call_.w.qk, queries_.dq + (i + 1) * ld, real{});
    }
  }
  void store_dq(const Unit& u, int64_t g, int64_t first, bool final) {
    const int64_t ld = padded_width<U>(call_.w.qk), head = u.kv_head * call_.group() + g;
    for (int64_t i = 0; i < queries_.count; i++) {
      if (final)
        round_row(queries_.dq + i * ld, call_.w.qk,
                  const_cast<T*>(row(call_.b.dq, call_.b.dqs, u.sequence.batch, head, u.sequence.q_first + first + i)));
      else
        std::copy_n(queries_.dq + i * ld, call_.w.qk, dq_row(u, g, first + i));
    }
  }
  void query_block(const Unit& u, int64_t span, Range keys, int64_t head, int64_t g, int64_t n,
                   const PairVisibility& pairs) {
    const DenseSequence& s = u.sequence;
    const int64_t first = n * kGradQueryBlock, span_keys = blocks_ * kGradKeyBlock;
    pack_queries(s, head, first);
    const Range seen = keys_seen(s, call_.b.forward.meaning, {first, first + queries_.count});
    const bool opening = seen.begin / span_keys == span, final = (seen.end - 1) / span_keys == span;
    const int64_t gate = u.first_gate + g * u.query_blocks() + n;
    if (call_.ordered() && !opening) call_.gates->wait(gate, span);
    if (call_.wanted.dq) load_dq(u, g, first, opening);
    real* const sums = call_.dbias.row_sums(s, head) ? call_.dbias.row_sums(s, head) + first : nullptr;
    if (sums) std::copy_n(sums, queries_.count, row_sums_);
    for (int64_t i = 0; i < blocks_ && keys_[i].count; i++)
      block_pair(s, head, first, keys.begin + i * kGradKeyBlock, keys_[i], pairs);
    if (sums) std::copy_n(row_sums_, queries_.count, sums);
    if (call_.wanted.dq) store_dq(u, g, first, final);
    if (call_.ordered()) call_.gates->pass(gate, span);
  }

  // ---- a pair of blocks -------------------------------------------------------------------------------------------
  static Range within(Range r, int64_t base, int64_t count) {
    return {std::max<int64_t>(0, r.begin - base), std::min(count, r.end - base)};
  }
  static bool every_pair(const DenseSequence& s, const Meaning& m, Range queries, Range keys) {  // by the window
    return keys.end - 1 - m.right - s.shift() <= queries.begin && keys.begin + m.left - s.shift() >= queries.end - 1;
  }
  void block_pair(const DenseSequence& s, int64_t head, int64_t query, int64_t key, KeyBlock<U, T>& keys,
                  const PairVisibility& pairs) {
    const AttentionArguments& a = call_.b.forward;
    const Meaning& m = a.meaning;
    const Range qs{query, query + queries_.count}, ks{key, key + keys.count};
    if (within(queries_seeing(s, m, ks), query, queries_.count).empty()) return;
    const Seen data = pairs.decides() ? pairs.seen(qs, ks) : Seen::all;
    if (data == Seen::none) return;
    const bool whole = every_pair(s, m, qs, ks) && data == Seen::all && !queries_.absent &&
                       queries_.count % U::pair == 0;
    const bool careful = !whole && !(keys.finite && queries_.finite);
    for (int64_t r = 0; r < keys.count; r += kKeyChunk)
      key_chunk(s, head, query, key, r, std::min(kKeyChunk, keys.count - r), keys, pairs, data == Seen::some, careful);
    if (call_.wanted.dq && !careful) add_queries(s, query, key, keys);
  }
  void key_chunk(const DenseSequence& s, int64_t head, int64_t query, int64_t key, int64_t r, int64_t rows,
                 KeyBlock<U, T>& keys, const PairVisibility& pairs, bool some, bool careful) {
    const AttentionArguments& a = call_.b.forward;
    const Meaning& m = a.meaning;
    const Widths w = call_.w;
    const Range ks{key + r, key + r + rows}, seen = within(queries_seeing(s, m, ks), query, queries_.count);
    constexpr int64_t lanes = kUnitLanes<U>;
    const int64_t from = seen.empty() ? 0 : seen.begin / lanes * lanes;
    const int64_t to = seen.empty() ? 0 : (seen.end + lanes - 1) / lanes * lanes;
    Chunk<U> c;
    c.ld = kScoreLd, c.s = scratch_.s, c.dp = scratch_.dp, c.p = scratch_.p, c.ds = scratch_.ds + r * kScoreLd;
    if (from < to) {
      transposed_scores<U>(keys.k + r * words<U>(w.qk), words<U>(w.qk), rows, queries_.q_columns, from, to, c.s);
      if (call_.wanted.ds())
        transposed_scores<U>(keys.v + r * words<U>(w.v), words<U>(w.v), rows, queries_.dout_columns, from, to, c.dp);
      const bool band = !every_pair(s, m, {query, query + queries_.count}, ks);
      if (band || some || careful || a.bias || call_.wanted.dbias || m.softcap > 0) {
        c.band_first = ks.begin - m.right - s.shift() - query;
        c.band_last = ks.begin + m.left - s.shift() + 1 - query;
        const int64_t last = std::min(to, queries_.count);
        if (a.bias) {
          BiasTiles{a}.read(s, head, query, ks.begin, rows, from, last, scratch_.bias, kScoreLd);
          for (int64_t k = 0; k < rows; k++)
            std::fill(scratch_.bias + k * kScoreLd + last, scratch_.bias + k * kScoreLd + to, real{});
          c.bias = scratch_.bias;
        }
        if (some || careful) c.keep = keep(query, ks, from, to, c, pairs);
        if (call_.wanted.dbias) c.dbias = scratch_.dbias;
        score_gradient<U>(c, rows, from, to, queries_.terms(), m.scale, m.softcap);
        if (c.dbias) call_.dbias.add(s, head, query, ks.begin, rows, from, last, c.dbias, kScoreLd, row_sums_);
      } else {
        plain_score_gradient<U>(c, rows, from, to, queries_.terms(), m.scale);
      }
      if (careful) {
        const T* k[kGradKeyBlock];
        const int64_t kv_head = head / call_.group();
        row_pointers(row(a.k, a.ks, s.batch, kv_head, s.kv_first + key), a.ks.t, keys.count, k);
        add_pair_by_pair<U, T>(c, r, rows, from, to, queries_, keys, k, w, call_.wanted);
      } else {
        add_key_sums<U, T>(c, r, rows, from, to, queries_, keys, w, call_.wanted);
      }
    }
    if (call_.wanted.dq && !careful) {
      using element = typename U::element;
      for (int64_t k = 0; k < rows && (from > 0 || to < kGradQueryBlock); k++) {
        std::fill(c.ds + k * kScoreLd, c.ds + k * kScoreLd + from, element{});
        std::fill(c.ds + k * kScoreLd + to, c.ds + k * kScoreLd + kGradQueryBlock, element{});
      }
      pair_key_rows<U>(c.ds, rows, kGradQueryBlock, scratch_.ds_columns + r / U::pair * kScoreLd);
    }
  }
  const Integer<U>* keep(int64_t query, Range ks, int64_t from, int64_t to, const Chunk<U>& c,
                         const PairVisibility& pairs) {
    for (int64_t i = from; i < to; i++)
      for (int64_t r = 0; r < ks.end - ks.begin; r++) {
        const bool in_band = i >= c.band_first + r && i < c.band_last + r && i < queries_.count;
        const bool present = queries_.lse[i] != std::numeric_limits<real>::infinity();
        scratch_.keep[r * kScoreLd + i] = in_band && present && pairs.visible(query + i, ks.begin + r) ? -1 : 0;
      }
    return scratch_.keep;
  }
  // dQ += dS K, a run of queries at a time, over the keys that the run sees.
  void add_queries(const DenseSequence& s, int64_t query, int64_t key, const KeyBlock<U, T>& keys) {
    const int64_t depth = words<U>(keys.count), ld = padded_width<U>(call_.w.qk);
    for (int64_t i = 0; i < queries_.count; i += kQueryRun) {
      const int64_t rows = std::min(kQueryRun, queries_.count - i);
      const Range seen = within(keys_seen(s, call_.b.forward.meaning, {query + i, query + i + rows}), key, keys.count);
      if (seen.empty()) continue;
      const int64_t first = seen.begin / U::pair, last = words<U>(seen.end);
      add_product<U>(ByColumn{kScoreLd}, rows, call_.w.qk, first, last - first, scratch_.ds_columns + i, keys.k_rows,
                     depth, queries_.dq + i * ld);
    }
  }

  const BackwardCall<U, T>& call_;
  Workspace space_;
  int64_t blocks_;
  QueryBlock<U, T> queries_;
  KeyBlock<U, T> keys_[kMostSpanBlocks];
  PairScratch<U> scratch_;
  T* zeros_;
  real* row_sums_;
  std::vector<T> scaled_dout_;            // rows with a factor (large_rows.hpp), when there are any
};

}  // namespace tilewise::gradients
