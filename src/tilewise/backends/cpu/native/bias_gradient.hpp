// The bias as tiles, and its gradient. An axis along which the bias was broadcast is an axis along which dbias sums:
//   full   dbias[i, j] += g           the tile's own place (batches and heads that share it never run at once)
//   row    sum over keys first        one value a query and head, then over whatever else is shared
//   column sum over queries first     one value a key and head
// Every sum has a fixed order.
#pragma once
#include "score_gradient.hpp"
#include "sequences.hpp"

namespace tilewise::gradients {

// out[key r, query i] for a chunk of keys and queries [from, to): the bias of a tile, transposed.
template <class real, class T>
void read_bias_tile(const T* bias, int64_t stride_t, int64_t stride_s, int64_t keys, int64_t from, int64_t to,
                    real* out, std::ptrdiff_t ld) {
  for (int64_t i = from; i < to; i++)
    for (int64_t r = 0; r < keys; r++) out[r * ld + i] = static_cast<real>(to_float(bias[i * stride_t + r * stride_s]));
}

struct BiasTiles {
  const AttentionArguments& a;
  template <class real>
  void read(const DenseSequence& s, int64_t head, int64_t query, int64_t key, int64_t keys, int64_t from, int64_t to,
            real* out, std::ptrdiff_t ld) const {
    const Strides4& st = a.bias_strides;
    const int64_t at = s.batch * st.b + head * st.h + (s.q_first + query) * st.t + (s.kv_first + key) * st.s;
    const auto go = [&](auto zero) {
      using T = decltype(zero);
      read_bias_tile(static_cast<const T*>(a.bias) + at, st.t, st.s, keys, from, to, out, ld);
    };
    switch (a.bias_dtype) {
      case DType::bf16: return go(bf16{});
      case DType::f16: return go(f16{});
      case DType::f64: return go(double{});
      default: return go(float{});
    }
  }
};

template <class real> struct BiasGradient {
  enum class Kind { none, full, row, column };

  const BackwardArguments& b;
  Kind kind = Kind::none;
  Strides4 stride;              // 0 along summed axes
  real* sums = nullptr;         // row: [batch, q_heads, q_len]; column: [batch, q_heads, kv_len]

  explicit BiasGradient(const BackwardArguments& arguments) : b(arguments), stride(arguments.dbias_strides) {
    if (!b.dbias) return;
    const AttentionArguments& a = b.forward;
    const auto summed = [&](int axis, int64_t size) { return b.dbias_sizes[axis] == 1 && size > 1; };
    if (b.dbias_sizes[0] == 1) stride.b = 0;
    if (b.dbias_sizes[1] == 1) stride.h = 0;
    if (b.dbias_sizes[2] == 1) stride.t = 0;
    if (b.dbias_sizes[3] == 1) stride.s = 0;
    kind = summed(3, a.kv_len) ? Kind::row : summed(2, a.q_len) ? Kind::column : Kind::full;
  }
  bool wanted() const { return kind != Kind::none; }
  bool shared_by_batches() const { return kind == Kind::full && b.dbias_sizes[0] == 1 && batches() > 1; }
  bool shared_by_heads() const { return kind == Kind::full && b.dbias_sizes[1] == 1 && b.forward.q_heads > 1; }
  int64_t batches() const { return b.forward.q_starts ? 1 : b.forward.batch; }
  int64_t sum_length() const {
    return kind == Kind::row ? b.forward.q_len : kind == Kind::column ? b.forward.kv_len : 0;
  }
  int64_t sum_count() const { return batches() * b.forward.q_heads * sum_length(); }
  real* sums_of(const DenseSequence& s, int64_t head) const {
    return sums + (s.batch * b.forward.q_heads + head) * sum_length();
  }
  real* row_sums(const DenseSequence& s, int64_t head) const {
    return kind == Kind::row ? sums_of(s, head) + s.q_first : nullptr;
  }
  real* at(int64_t batch, int64_t head, int64_t i, int64_t j) const {
    return static_cast<real*>(b.dbias) + batch * stride.b + head * stride.h + i * stride.t + j * stride.s;
  }

  void clear() const {
    const int64_t* n = b.dbias_sizes;
    for (int64_t x = 0; x < n[0]; x++)
      for (int64_t y = 0; y < n[1]; y++)
        for (int64_t i = 0; i < n[2]; i++)
          for (int64_t j = 0; j < n[3]; j++) *at(x, y, i, j) = 0;
    std::fill_n(sums, sum_count(), real{});
  }

  // g[r * ld + i]: key `key` + r, query `query` + i, of the sequence. row_sums: [queries], the row sums so far.
  void add(const DenseSequence& s, int64_t head, int64_t query, int64_t key, int64_t keys, int64_t from, int64_t to,
           const real* g, std::ptrdiff_t ld, real* row_sums) const {
    if (kind == Kind::full) {
      for (int64_t i = from; i < to; i++) {
        real* out = at(s.batch, head, s.q_first + query + i, s.kv_first + key);
        for (int64_t r = 0; r < keys; r++) out[r * stride.s] += g[r * ld + i];
      }
    } else if (kind == Kind::row) {
      for (int64_t i = from; i < to; i++) {
        real sum = 0;
        for (int64_t r = 0; r < keys; r++) sum += g[r * ld + i];
        row_sums[i] += sum;
      }
    } else if (kind == Kind::column) {
      real* out = sums_of(s, head) + s.kv_first + key;
      for (int64_t r = 0; r < keys; r++) {
        real sum = 0;
        for (int64_t i = from; i < to; i++) sum += g[r * ld + i];
        out[r] += sum;
      }
    }
  }
  // Row and column sums into dbias, once all are there.
  void finish() const {
    const int64_t n = sum_length();
    for (int64_t x = 0; n && x < batches(); x++)
      for (int64_t y = 0; y < b.forward.q_heads; y++) {
        const real* from = sums + (x * b.forward.q_heads + y) * n;
        const int64_t step = kind == Kind::row ? stride.t : stride.s;
        real* out = at(x, y, 0, 0);
        if (step || n == 1) {
          for (int64_t i = 0; i < n; i++) out[i * step] += from[i];
        } else {
          double sum = 0;
          for (int64_t i = 0; i < n; i++) sum += static_cast<double>(from[i]);
          *out += static_cast<real>(sum);
        }
      }
  }
};

}  // namespace tilewise::gradients
