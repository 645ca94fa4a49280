"""A training job for torchrun: DDP over gloo, checkpoints, and on request a sudden death."""

import argparse
import json
import os
import signal
from pathlib import Path

import ending
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import corgiarrow.torch as ct


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--seed-by-rank", action="store_true")
    parser.add_argument("--threads", action="store_true", help="corgiarrow.torch.loader instead of a DataLoader")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--die-at", type=int, help="step at which rank 1 is killed")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    options = dict(args.options)
    if args.seed_by_rank:
        options["seed"] = rank
    source = ct.loader(args.data, **options) if args.threads else ct.CorgiPileDataset(args.data, **options)
    loader = source if args.threads else DataLoader(source, batch_size=None, num_workers=args.workers)

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    begin = 0
    if args.checkpoint and args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        source.load_state_dict(saved["data"])
        begin = saved["data"]["epoch"]
    steps = []
    for epoch in range(begin, args.epochs):
        for number, batch in enumerate(loader):
            if number == args.die_at and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            x, y = batch["x"][:, None], batch["label"][:, None].float()
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append({"epoch": epoch, "ids": batch["id"].tolist(), "loss": loss.item()})
            if args.checkpoint and number % 3 == 2 and rank == 0:
                beside = args.checkpoint.with_suffix(".new")
                torch.save({"model": model.state_dict(), "data": source.state_dict(), "steps": steps}, beside)
                beside.replace(args.checkpoint)
            if args.checkpoint and number % 3 == 2:
                (args.out / f"before-{rank}.json").write_text(json.dumps(steps))
                dist.barrier()
    (args.out / f"rank-{rank}.json").write_text(json.dumps({"steps": steps, "workers": args.workers}))
    dist.destroy_process_group()
    ending.end()


if __name__ == "__main__":
    main()
