#include "decode_kernel.hpp"

#include "decode_piece.hpp"

namespace tilewise {
namespace {

template <class W, class T> void run(const PagedArguments& a, const RowBlock& rows, Range keys, float* state) {
  Workspace space(Decoder<W, T>::bytes(a, rows));
  Decoder<W, T> decoder(a, rows, keys, space);
  decoder.run(State(state, rows.rows(), padded_columns<W>(a.v_dim)));
}
template <class W, class T> constexpr DecodeKernel kKernel{padded_columns<W>, run<W, T>, finish<W>};

}  // namespace

// The pair product is used where it is exact: queries of bf16, keys that bf16 holds. Everything else is float32.
const DecodeKernel& decode_kernel(DType q, DType pages) {
  if constexpr (kHasBf16Dot) {
    if (q == DType::bf16) {
      if (pages == DType::bf16) return kKernel<Paired<bf16>, bf16>;
      if (pages == DType::i8) return kKernel<Paired<Int8>, Int8>;
      if (pages == DType::e4m3) return kKernel<Paired<E4m3>, E4m3>;
      if (pages == DType::e5m2) return kKernel<Paired<E5m2>, E5m2>;
    }
  }
  switch (pages) {
    case DType::bf16: return kKernel<Wide<bf16>, bf16>;
    case DType::f16: return kKernel<Wide<f16>, f16>;
    case DType::i8: return kKernel<Wide<Int8>, Int8>;
    case DType::e4m3: return kKernel<Wide<E4m3>, E4m3>;
    case DType::e5m2: return kKernel<Wide<E5m2>, E5m2>;
    default: return kKernel<Wide<float>, float>;
  }
}

}  // namespace tilewise
