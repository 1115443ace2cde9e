#include "backward.hpp"

#include "backward_span.hpp"

namespace tilewise {
namespace gradients {
namespace {

constexpr int64_t kTermRows = 512;  // rows of a task of the first pass

template <class T> void zero_gradient_row(void* base, const Strides& st, int64_t b, int64_t h, int64_t t, int64_t n) {
  std::fill_n(static_cast<T*>(base) + b * st.b + h * st.h + t * st.t, n, T{});
}

// Rows of a gradient that no sequence owns.
template <class T>
void zero_unowned(const AttentionArguments& a, const int32_t* starts, const int32_t* lens, int64_t length,
                  int64_t heads, void* base, const Strides& st, int64_t width) {
  if (!base) return;
  const int64_t batches = starts ? 1 : a.batch;
  for (int64_t b = 0; b < batches; b++) {
    const int64_t first = starts ? starts[0] : 0, last = starts ? starts[a.batch] : lens ? lens[b] : length;
    for (int64_t h = 0; h < heads; h++) {
      for (int64_t t = 0; t < first; t++) zero_gradient_row<T>(base, st, b, h, t, width);
      for (int64_t t = last; t < length; t++) zero_gradient_row<T>(base, st, b, h, t, width);
    }
  }
}

// First pass: what each row brings, the gradient of the sinks, and zeros for rows that see nothing.
template <class U, class T> void first_pass(const BackwardCall<U, T>& call) {
  using real = typename U::real;
  const BackwardArguments& b = call.b;
  const AttentionArguments& a = b.forward;
  struct RowPiece { DenseSequence sequence; Range rows; };
  std::vector<RowPiece> pieces;
  for (int64_t n = 0; n < a.batch; n++) {
    const DenseSequence s = sequence_of(a, n);
    for (int64_t i = 0; i < s.q_count; i += kTermRows) pieces.push_back({s, {i, std::min(s.q_count, i + kTermRows)}});
  }
  const int64_t heads = a.q_heads, tasks = static_cast<int64_t>(pieces.size()) * heads;
  std::vector<double> dsinks(b.dsinks ? tasks : 0);
  parallel_for(tasks, [&](int64_t task, int) {
    const RowPiece& piece = pieces[task / heads];
    const int64_t head = task % heads;
    const double share = row_terms<T, real>(b, piece.sequence, head, piece.rows, call.rows);
    if (b.dsinks) dsinks[task] = share;
    if (!b.dq) return;
    for (int64_t i = piece.rows.begin; i < piece.rows.end; i += kGradQueryBlock) {
      const Range block{i, std::min(piece.rows.end, i + kGradQueryBlock)};
      if (keys_seen(piece.sequence, a.meaning, block).empty())
        for (int64_t t = block.begin; t < block.end; t++)
          zero_gradient_row<T>(b.dq, b.dqs, piece.sequence.batch, head, piece.sequence.q_first + t, a.qk_dim);
    }
  });
  for (int64_t h = 0; b.dsinks && h < heads; h++) {
    double sum = 0;
    for (int64_t task = h; task < tasks; task += heads) sum += dsinks[task];
    static_cast<real*>(b.dsinks)[h] = static_cast<real>(sum);
  }
}

template <class U, class T> struct SpanSchedule {
  std::vector<Unit> units;
  std::vector<Range> sets;  // of units, see backward_plan.hpp
  int64_t blocks = 1, gates = 0;

  explicit SpanSchedule(const BackwardCall<U, T>& call) {
    const AttentionArguments& a = call.b.forward;
    const bool by_batches = call.dbias.shared_by_batches(), by_heads = call.dbias.shared_by_heads();
    int64_t key_blocks = 0;
    const auto add = [&](int64_t n, int64_t head) {
      Unit u;
      u.sequence = sequence_of(a, n), u.kv_head = head, u.first_gate = gates;
      gates += call.group() * u.query_blocks();
      key_blocks += (u.sequence.kv_count + kGradKeyBlock - 1) / kGradKeyBlock;
      units.push_back(u);
    };
    const auto close = [&] {
      const int64_t first = sets.empty() ? 0 : sets.back().end, last = static_cast<int64_t>(units.size());
      if (first < last) sets.push_back({first, last});
    };
    if (by_batches && !by_heads) {
      for (int64_t h = 0; h < a.kv_heads; h++, close())
        for (int64_t n = 0; n < a.batch; n++) add(n, h);
    } else {
      for (int64_t n = 0; n < a.batch; n++)
        for (int64_t h = 0; h < a.kv_heads; h++) {
          add(n, h);
          if (!by_heads || (!by_batches && h + 1 == a.kv_heads)) close();
        }
      close();
    }
    blocks = span_blocks(key_blocks, 6 * num_threads());
  }
  int64_t spans(const Range& set) const {
    int64_t most = 0;
    for (int64_t u = set.begin; u < set.end; u++)
      most = std::max(most, (units[u].sequence.kv_count + blocks * kGradKeyBlock - 1) / (blocks * kGradKeyBlock));
    return most;
  }
};

template <class U, class T>
void run_wave(BackwardCall<U, T>& call, const SpanSchedule<U, T>& plan, int64_t first, int64_t last) {
  std::vector<Task> tasks;
  int64_t most = 0;
  for (int64_t set = first; set < last; set++) most = std::max(most, plan.spans(plan.sets[set]));
  for (int64_t span = 0; span < most; span++)
    for (int64_t set = first; set < last; set++)
      if (span < plan.spans(plan.sets[set])) tasks.push_back({static_cast<int32_t>(set), static_cast<int32_t>(span)});
  parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t n, int) {
    const Range& set = plan.sets[tasks[n].set];
    try {
      SpanWork<U, T> work(call, plan.blocks);
      for (int64_t u = set.begin; u < set.end; u++) work.run(plan.units[u], tasks[n].span);
    } catch (const Gates::Abandoned&) {
    } catch (...) {
      call.gates->abandon();
      throw;
    }
  });
}

template <class U, class T> void backward_of(const BackwardArguments& b) {
  using real = typename U::real;
  const AttentionArguments& a = b.forward;
  BackwardCall<U, T> call(b);
  zero_unowned<T>(a, a.q_starts, a.q_lens, a.q_len, a.q_heads, b.dq, b.dqs, a.qk_dim);
  zero_unowned<T>(a, a.kv_starts, a.kv_lens, a.kv_len, a.kv_heads, b.dk, b.dks, a.qk_dim);
  zero_unowned<T>(a, a.kv_starts, a.kv_lens, a.kv_len, a.kv_heads, b.dv, b.dvs, a.v_dim);
  const int64_t rows = RowArrays<real>::rows(a), sums = call.dbias.sum_count();
  Workspace space((3 * rows + sums) * sizeof(real) + 4 * 64);
  call.rows = {space.take<real>(rows), space.take<real>(rows), space.take<real>(rows)};
  call.dbias.sums = space.take<real>(sums);
  if (b.dbias) call.dbias.clear();
  first_pass(call);
  if (!(b.dq || b.dk || b.dv || b.dbias)) return;

  SpanSchedule<U, T> plan(call);
  Gates gates(plan.gates);
  call.gates = &gates;
  const int64_t sets = static_cast<int64_t>(plan.sets.size());
  for (int64_t first = 0, last = 0; first < sets; first = last) {
    int64_t dq_rows = 0, tasks = 0;
    for (; last < sets; last++) {
      const int64_t dq_bytes = dq_rows * a.qk_dim * static_cast<int64_t>(sizeof(real));
      const bool enough = tasks >= 4 * num_threads() && dq_bytes >= kDqBudget;
      if (enough) break;
      const int64_t spans = plan.spans(plan.sets[last]);
      tasks += spans;
      for (int64_t u = plan.sets[last].begin; u < plan.sets[last].end; u++) {
        plan.units[u].dq_rows = dq_rows;
        if (BackwardCall<U, T>::narrow && b.dq && spans > 1) dq_rows += call.group() * plan.units[u].sequence.q_count;
      }
    }
    Workspace dq(dq_rows * a.qk_dim * sizeof(real));
    call.narrow_dq = dq.take<real>(dq_rows * a.qk_dim);
    run_wave(call, plan, first, last);
  }
  if (b.dbias) call.dbias.finish();
}

}  // namespace
}  // namespace gradients

void backward(const BackwardArguments& b) {
  using Bf16 = std::conditional_t<kHasBf16Dot, Bf16Unit, F32Unit>;
  switch (b.forward.dtype) {
    case DType::f32: return gradients::backward_of<F32Unit, float>(b);
    case DType::bf16: return gradients::backward_of<Bf16, bf16>(b);
    case DType::f16: return gradients::backward_of<F32Unit, f16>(b);
    case DType::f64: return gradients::backward_of<F64Unit, double>(b);
    default: return;
  }
}

}  // namespace tilewise
