"""What recipes train with in place of ``torch.nn.Linear``: it notes its rows, and dies where it is told to."""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

IDS = 8192
"""Column ``x`` is a row's number over this, which a float32 holds exactly."""


class Linear(torch.nn.Linear):
    """A layer that appends the ids of each batch to a file of this rank and process; a rank's first process dies."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "file"):
            folder, rank = Path(os.environ["RECIPE_RECORD"]), dist.get_rank() if dist.is_initialized() else 0
            first = not any(folder.glob(f"rank-{rank}-*"))
            self.dies_after = int(os.environ["RECIPE_DIES_AFTER"]) if first else -1
            self.file, self.steps = folder / f"rank-{rank}-{time.time_ns()}.jsonl", 0
        if self.steps == self.dies_after:
            os._exit(1)
        with self.file.open("a") as file:
            file.write(json.dumps((x[:, 0] * IDS).long().tolist()) + "\n")
        self.steps += 1
        return super().forward(x)
