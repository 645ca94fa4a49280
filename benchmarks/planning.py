"""Measure planning for a million blocks: one part's plan, a seek, and the way to the first read of a resumed
epoch.

Run ``python benchmarks/planning.py`` (``--blocks 10000 --parts 16`` for a quick try). Nothing is read: the
blocks are synthetic. Each round is a fresh process; *memory* is the most that the process grew by after the
imports, the index's own arrays included.

- *plan*: a Reader of one of 1,024 parts, its epoch's plan and its first shuffled step.
- *seek*: ``seek`` to the middle of another epoch, the plan from there, and the step that the next batch lies
  in.
- *resume*: a reader of all blocks in one stream loads a state in the middle of an epoch; until the first
  read.
"""

import argparse
import json
import sys
import time
from statistics import median

import data
from synthetic import SyntheticSource

import corgiarrow as ca

ROWS = 1_000
BATCH = 1_000
LINES = [
    ("plan of one part", "plan_s", "s", 1.0),
    ("seek", "seek_s", "s", 1.0),
    ("plan and seek: memory", "plan_bytes", "MB", 200.0),
    ("resume: until the first read", "resume_s", "s", 1.0),
    ("resume: until the first batch", "resume_batch_s", "s", None),
    ("resume: memory", "resume_bytes", "MB", None),
]


def plan(blocks: int, parts: int) -> dict[str, float]:
    """Plan one part and seek, in this process."""
    before = data.memory_status("VmRSS")
    source = SyntheticSource(blocks, ROWS)
    part = parts // 3
    began = time.perf_counter()
    reader = ca.Reader(source, rank=part, world_size=parts, buffer_fraction=0.05, batch_size=BATCH)
    _, steps = reader.plan().stream(part).steps()
    next(steps)
    planned = time.perf_counter()
    step = len(reader) // 2
    reader.seek(1, step)
    _, steps = reader.plan().stream(part).steps(step)
    next(steps)
    done = time.perf_counter()
    grown = data.memory_status("VmHWM") - before
    return {"plan_s": planned - began, "seek_s": done - planned, "plan_bytes": grown}


def resume(blocks: int) -> dict[str, float]:
    """Resume in the middle of an epoch of one stream, in this process."""
    before = data.memory_status("VmRSS")
    source = SyntheticSource(blocks, ROWS)
    saver = ca.Reader(source, buffer_blocks=100, batch_size=BATCH, threads=2)
    saver.seek(0, len(saver) // 2 + 7)
    state = saver.state_dict()
    began = time.perf_counter()
    reader = ca.Reader(source, buffer_blocks=100, batch_size=BATCH, threads=2)
    reader.load_state_dict(state)
    batches = iter(reader)
    next(batches)
    batch = time.perf_counter()
    reader.close()
    if source.first_read is None:
        raise AssertionError("nothing was read")
    grown = data.memory_status("VmHWM") - before
    return {"resume_s": source.first_read - began, "resume_batch_s": batch - began, "resume_bytes": grown}


def in_fresh_process(task: str, blocks: int, parts: int) -> dict[str, float]:
    """Run :func:`plan` or :func:`resume` in a new process."""
    arguments = ("--task", task, "--blocks", blocks, "--parts", parts)
    found: dict[str, float] = json.loads(data.in_fresh_process(__file__, *arguments))
    return found


def main() -> None:
    parser = data.parser(__doc__)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, default=1_024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    blocks, parts = arguments.blocks, arguments.parts
    if arguments.task:
        json.dump(plan(blocks, parts) if arguments.task == "plan" else resume(blocks), sys.stdout)
        return
    rounds = [
        in_fresh_process("plan", blocks, parts) | in_fresh_process("resume", blocks, parts)
        for _ in range(arguments.rounds)
    ]
    print(f"{blocks} blocks of {ROWS} rows, {parts} parts, corgipile\n")
    lines = []
    for title, key, unit, goal in LINES:
        each = [r[key] / (1e6 if unit == "MB" else 1) for r in rounds]
        digits = 0 if unit == "MB" else 3
        verdict = "" if goal is None else ("reached" if median(each) <= goal else "MISSED")
        lines.append(
            [
                title,
                unit,
                f"{median(each):.{digits}f}",
                f"{max(each):.{digits}f}",
                f"≤ {goal:g}" if goal else "",
                verdict,
            ]
        )
    data.print_table(["what", "unit", "median", "max", "goal", ""], lines)
    data.save_json(arguments.json, {"blocks": blocks, "parts": parts, "rounds": rounds})


if __name__ == "__main__":
    main()
