"""Trains a small GPT from Meshwright's exported Megatron-LM arguments, on processes of this machine.

    torchrun --standalone --nproc-per-node 2 train.py FOLDER/megatron_args.sh --steps 4

Data, tensor (with sequence) or pipeline parallel, micro-batches under 1F1B, some or all layers recomputed;
bf16 weights, fp32 gradients and fp32 AdamW states, as the plan was priced. Rank 0 prints one JSON line: the
fastest step and the largest peak memory of all ranks.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
from parts import Embedding, Head, Layer, Ranks, Shape
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def exported(path: Path) -> dict[str, str]:
    """Flags of the exported file by name; a switch is an empty text."""
    body = path.read_text().partition("MEGATRON_ARGS=(\n")[2].rpartition("\n)")[0]
    flags: dict[str, str] = {}
    name = ""
    for word in shlex.split(body, comments=True):
        if word.startswith("--"):
            name = word[2:]
            flags[name] = ""
        else:
            flags[name] = word
    return flags


class Plan:
    """What the exported arguments say of the run, and this rank's place in it."""

    def __init__(self, flags: dict[str, str]) -> None:
        number = {name: int(value) for name, value in flags.items() if value.isdigit()}
        self.tp = number["tensor-model-parallel-size"]
        self.pp = number["pipeline-model-parallel-size"]
        self.dp = dist.get_world_size() // (self.tp * self.pp)
        rank = dist.get_rank()  # tensor ranks innermost, stages outermost
        self.stage, self.replica = rank // (self.tp * self.dp), rank // self.tp % self.dp
        self.micro_batch, self.seq_length = number["micro-batch-size"], number["seq-length"]
        self.num_microbatches = number["global-batch-size"] // (self.micro_batch * self.dp)
        self.recomputed = 0  # of each stage's layers, the first ones
        if flags.get("recompute-granularity") == "full":
            every = flags["recompute-method"] == "uniform"
            self.recomputed = number["num-layers"] if every else number["recompute-num-layers"]
        heads, unit = number["num-attention-heads"], 128 * self.tp
        self.shape = Shape(
            num_layers=number["num-layers"],
            hidden=number["hidden-size"],
            ffn=number["ffn-hidden-size"],
            heads=heads,
            kv_heads=number.get("num-query-groups", heads),
            head_dim=number["kv-channels"],
            vocabulary=-(-number["vocab-size"] // unit) * unit,
            rotary_base=float(number["rotary-base"]),
        )
        layout = flags.get("pipeline-model-parallel-layout")
        each = [self.shape.num_layers // self.pp] * self.pp
        self.stage_layers = [_layers(part) for part in layout.split("|")] if layout else each
        self.tensor_group = _group_of(lambda rank: rank // self.tp)
        self.data_group = _group_of(lambda rank: (rank % self.tp, rank // (self.tp * self.dp)))


def _layers(part: str) -> int:
    """Layers of one stage of the layout: ``Et*7`` is an embedding and 7 layers."""
    count = part.partition("*")[2].rstrip("L")
    return int(count) if count else part.count("t")


def _group_of(key: Callable[[int], object]) -> dist.ProcessGroup:
    """The group of ranks with this rank's key; every rank makes every group."""
    ranks: dict[object, list[int]] = {}
    for rank in range(dist.get_world_size()):
        ranks.setdefault(key(rank), []).append(rank)
    made = {name: dist.new_group(members) for name, members in ranks.items()}
    return made[key(dist.get_rank())]


class Stage(nn.Module):
    """The layers of one pipeline rank; the first has the embedding, the last the head."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        ranks = Ranks(plan.tp, dist.get_rank() % plan.tp, plan.tensor_group)
        self.first, self.last = plan.stage == 0, plan.stage == plan.pp - 1
        self.embedding = Embedding(plan.shape, ranks) if self.first else None
        layers = plan.stage_layers[plan.stage]
        self.layers = nn.ModuleList(Layer(plan.shape, ranks) for _ in range(layers))
        self.head = Head(plan.shape, ranks) if self.last else None

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Activations for the next stage, or the loss."""
        if self.embedding is not None:
            x = self.embedding(x)
        for number, layer in enumerate(self.layers):
            again = number < self.plan.recomputed
            x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        return x if self.head is None else self.head(x, targets)


class Trainer:
    """One optimizer step after the other."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stage = Stage(plan).bfloat16()
        self.weights = list(self.stage.parameters())
        self.gradients = [torch.zeros_like(weight, dtype=torch.float32) for weight in self.weights]
        self.masters = [weight.detach().float() for weight in self.weights]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, foreach=False)
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            weight.register_post_accumulate_grad_hook(lambda p, g=gradient: _moved(p, g))
        self.sent: list[dist.Work] = []
        self.held: list[tuple[Tensor, Tensor]] = []

    def step(self) -> float:
        """All micro-batches under 1F1B, the gradients' sum, the update; the loss of the last stage."""
        count = self.plan.num_microbatches
        ahead = min(self.plan.pp - self.plan.stage - 1, count)
        losses = [self.forward(number) for number in range(ahead)]
        for number in range(ahead, count):
            losses.append(self.forward(number))
            self.backward()
        for _ in range(ahead):
            self.backward()
        for work in self.sent:
            work.wait()
        self.sent.clear()
        self.update()
        return sum(losses) / len(losses)

    def forward(self, number: int) -> float:
        """One micro-batch through this stage; every step sees the same ones, so the loss falls."""
        plan = self.plan
        seed = torch.Generator().manual_seed(plan.num_microbatches * plan.replica + number)
        size = (plan.seq_length + 1, plan.micro_batch)
        tokens = torch.randint(plan.shape.vocabulary, size, generator=seed)
        x = tokens[:-1] if self.stage.first else self.received(plan.stage - 1).requires_grad_()
        out = self.stage(x, tokens[1:])
        self.held.append((x, out))
        if self.stage.last:
            return float(out.detach())
        self.send(out.detach(), plan.stage + 1)
        return 0.0

    def backward(self) -> None:
        """The oldest micro-batch back through this stage."""
        x, out = self.held.pop(0)
        if self.stage.last:
            (out / self.plan.num_microbatches).backward()
        else:
            out.backward(self.received(self.plan.stage + 1))
        if not self.stage.first:
            self.send(x.grad, self.plan.stage - 1)

    def update(self) -> None:
        """Gradients are summed over replicas, norms' over tensor ranks too; AdamW; weights are copied."""
        plan = self.plan
        if plan.tp > 1:
            for weight, gradient in zip(self.weights, self.gradients, strict=True):
                if weight.dim() == 1:  # each rank saw its part of the sequence only
                    dist.all_reduce(gradient, group=plan.tensor_group)
        if plan.dp > 1:
            flat = torch.cat([gradient.flatten() for gradient in self.gradients]).div_(plan.dp)
            dist.all_reduce(flat, group=plan.data_group)
            ends = list(accumulate(gradient.numel() for gradient in self.gradients))
            for gradient, end in zip(self.gradients, ends, strict=True):
                gradient.copy_(flat[end - gradient.numel() : end].view_as(gradient))
        for master, gradient in zip(self.masters, self.gradients, strict=True):
            master.grad = gradient
        self.optimizer.step()
        with torch.no_grad():
            for weight, master, gradient in zip(self.weights, self.masters, self.gradients, strict=True):
                weight.copy_(master)
                gradient.zero_()

    def send(self, x: Tensor, stage: int) -> None:
        """To the same place in another stage."""
        self.sent.append(dist.isend(x.contiguous(), self.rank_of(stage)))

    def received(self, stage: int) -> Tensor:
        """Activations, or their gradient, from the same place in another stage."""
        plan = self.plan
        shape = (plan.seq_length // plan.tp, plan.micro_batch, plan.shape.hidden)
        x = torch.empty(shape, dtype=torch.bfloat16)
        dist.recv(x, self.rank_of(stage))
        return x

    def rank_of(self, stage: int) -> int:
        """The rank of this place in another stage."""
        return dist.get_rank() + (stage - self.plan.stage) * self.plan.tp * self.plan.dp


def _moved(weight: nn.Parameter, gradient: Tensor) -> None:
    """The gradient of a micro-batch is added in fp32 and given back."""
    gradient.add_(weight.grad)
    weight.grad = None


def resident_bytes(name: str) -> int:
    """A figure of this process in /proc/self/status, such as VmRSS or VmHWM."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(name))
    return int(line.split()[1]) * 1024


def timed(trainer: Trainer, steps: int) -> Iterator[tuple[float, float]]:
    """Seconds and loss of each step."""
    for _ in range(steps):
        dist.barrier()
        began_s = time.perf_counter()
        loss = trainer.step()
        dist.barrier()
        yield time.perf_counter() - began_s, loss


def main() -> None:
    """Train and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arguments", type=Path)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warm-up", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    before = resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    trainer = Trainer(Plan(exported(options.arguments)))
    taken = list(timed(trainer, options.warm_up + options.steps))[options.warm_up :]
    peak = torch.tensor(resident_bytes("VmHWM") - before)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    losses = torch.tensor([taken[0][1], taken[-1][1]])
    dist.all_reduce(losses, op=dist.ReduceOp.MAX)  # stages before the last have none
    if dist.get_rank() == 0:
        seconds = min(second for second, _ in taken)  # others may use the machine too
        first, last = (round(float(loss), 3) for loss in losses)
        found = {"step_time_s": seconds, "peak_memory_bytes": int(peak), "losses": [first, last]}
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
