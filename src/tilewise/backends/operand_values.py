"""Judges the values of a planned call's integer arrays, for backends that can look at them."""

from __future__ import annotations

from tilewise.check_values import check_values
from tilewise.choose.plan import Plan
from tilewise.spec.problem import Operands, PagedOperands, Problem


def check_dense(p: Problem, o: Operands) -> None:
    """Of a dense or packed call; InvalidInput with the first wrong value."""
    check_values(q_len=p.q_len, kv_len=p.kv_len, q_lens=o.q_lens, kv_lens=o.kv_lens, q_starts=o.q_starts,
                 kv_starts=o.kv_starts, q_segment_ids=o.q_segment_ids, kv_segment_ids=o.kv_segment_ids)  # fmt: skip


def check_paged(plan: Plan, o: PagedOperands) -> None:
    """Of a paged call or an append; InvalidInput with the first wrong value."""
    p = plan.problem
    check_values(kv_lens=o.kv_lens, page_indices=o.page_indices, cu_q_lens=o.cu_q_lens, num_seqs=o.num_seqs,
                 num_pages=p.num_pages, page_size=p.page_size, max_tokens=p.max_tokens, left=plan.spec.window[0],
                 append=p.form == "append")  # fmt: skip
