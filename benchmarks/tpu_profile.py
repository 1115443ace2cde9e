"""What the real TPU compiler makes of the paged kernel in serving steps of known models, held against a stored table.

    python benchmarks/tpu_profile.py --write     # compile all, write tpu_profile.json beside this file
    python benchmarks/tpu_profile.py             # compile all, exit status 1 where something got worse

No TPU is needed and nothing is run. Worse: VMEM over the chip's, or spills or bundles of the inner loops up by 5 %.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

STORED = Path(__file__).with_name("tpu_profile.json")
STEPS = {"decode": {"tokens": 64, "seqs": 64}, "mixed": {"tokens": 512, "seqs": 64}}
NAMES = [
    *(f"llama-3-8b {step} {chip}" for chip in ("v4", "v5e", "v5p", "v6e", "tpu7x") for step in STEPS),
    "gemma-2-9b decode v6e", "gemma-2-9b mixed v6e", "gpt-oss-20b decode v6e", "gpt-oss-20b mixed v6e",
]  # fmt: skip
QUICK = ("llama-3-8b decode v6e", "gemma-2-9b mixed v6e")


def measure(name: str) -> dict[str, Any]:
    """VMEM in bytes, spills, and the bundles of the loops that hold most of the kernel, for "model step chip"."""
    from tilewise.backends.tpu import compile_offline, presets, tiles

    model, step, chip = name.split()
    spec, problem = presets.paged_call_of(model, **STEPS[step])
    chosen = tiles.first_choice(spec, problem)
    report = compile_offline.compile_paged(spec, problem, chosen, chip, time_limit=300)
    loops = [loop.bundles for loop in report.loops if loop.bundles >= 60]
    return {"tiles": str(chosen), "vmem": report.vmem, "spills": report.spills, "loops": loops,
            "copies": len(report.copies)}  # fmt: skip


def worse(name: str, now: dict[str, Any]) -> list[str]:
    """What is worse than stored, in words."""
    from tilewise.backends.tpu.target import CHIPS

    stored = json.loads(STORED.read_text())
    chip = CHIPS[name.split()[-1]]
    found = [f"{name}: VMEM {now['vmem']} of {chip.vmem}"] if now["vmem"] > chip.vmem else []
    if stored["libtpu"] != version("libtpu"):
        return found  # another compiler: its counts are its own
    was = stored["kernels"][name]
    for what, one, other in (("spills", now["spills"], was["spills"]),
                             ("bundles of loops", sum(now["loops"]), sum(was["loops"])),
                             ("copies of the cache", now["copies"], was["copies"])):  # fmt: skip
        if one > 1.05 * other:
            found.append(f"{name}: {what} {one}, stored {other}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    kernels = {}
    for name in NAMES:
        kernels[name] = measure(name)
        print(name, kernels[name], flush=True)
    if write:
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in kernels.items())
        STORED.write_text(f'{{"libtpu": "{version("libtpu")}", "kernels": {{\n{lines}\n}}}}\n')
        return 0
    found = [line for name, now in kernels.items() for line in worse(name, now)]
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
