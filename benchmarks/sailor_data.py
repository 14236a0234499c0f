"""Sailor's layer times and links as measured profiles and a mixed cluster: benchmarks/data/sailor.

    python -m benchmarks.sailor_data FOLDER        (the folder that holds layer_profiles and *.json)

Sailor (github.com/eth-easl/sailor, MIT) timed layers of four models on A100 and V100 nodes of a public
cloud, and the links between them. Its files state neither sequence length nor precision. At 2 048 tokens
(8 192 of Llama) the V100 files, and those of OPT-30B and Llama on A100-40, reach 4 to 18 TFLOP/s, never
more than the fp32 peaks of 15.7 and 19.5: they are taken as fp32. The other A100 files reach up to 34 to
82 TFLOP/s: they are taken as 16 bits (TF32 would do as well).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import yaml

from benchmarks.foreign.layer_times import Taken, measured_from_layers
from benchmarks.foreign.records import LayerProfile, LinkTable
from benchmarks.foreign.sailor import CATALOG_NAMES, read_sailor
from benchmarks.foreign.sailor_links import fields_of_links
from meshwright.profiles.library import find_gpu, find_model
from meshwright.profiles.measured.profile import MeasuredProfile, Session

OUT = Path(__file__).parent / "data" / "sailor"
SOURCE = "Sailor (github.com/eth-easl/sailor, MIT)"
SEQ_LENGTH = {"llama-3.1-8b": 8192}
USUAL_SEQ_LENGTH = 2048
FP32 = {("llama-3.1-8b", "a100-sxm-40gb"), ("opt-30b", "a100-sxm-40gb")}
GPUS_PER_NODE = 4  # a2-highgpu-4g, and n1 with four V100
NODES = {"a100-sxm-40gb": 4, "v100-sxm-16gb": 4}


def profile_of(path: Path) -> MeasuredProfile:
    """The measured profile of one of Sailor's files."""
    source = read_sailor(path)
    if not isinstance(source, LayerProfile) or source.model is None or source.gpu is None:
        raise SystemExit(f"{path} is no layer profile")
    model, gpu = CATALOG_NAMES[source.model], CATALOG_NAMES[source.gpu]
    fp32 = gpu.startswith("v100") or (model, gpu) in FP32
    taken = Taken(
        model=find_model(model),
        gpu=find_gpu(gpu),
        seq_length=SEQ_LENGTH.get(model, USUAL_SEQ_LENGTH),
        dtype="fp32" if fp32 else "fp16",
        with_collectives=True,
        session=Session(started_at="not stated by the source", command=SOURCE, meshwright="0"),
    )
    profile, notes = measured_from_layers(source, taken)
    sys.stderr.writelines(f"{model} on {gpu}: {note}\n" for note in notes)
    return profile


def text_of(profile: MeasuredProfile) -> str:
    """The file with one measurement a line."""
    raw = profile.to_json()
    lines = ",\n  ".join(json.dumps(one, separators=(",", ":")) for one in raw.pop("measurements"))  # type: ignore[attr-defined]
    head = json.dumps({**raw, "completed": []}, indent=1)
    return f'{head[:-2]},\n "measurements": [\n  {lines}\n ]\n}}\n'


def cluster_of(folder: Path) -> dict[str, object]:
    """A mixed cluster of both GPU types behind Sailor's links."""
    table = read_sailor(folder / "network_coeffs_all_homo.json")
    if not isinstance(table, LinkTable):
        raise SystemExit("network_coeffs_all_homo.json holds no links")
    groups = []
    for slug, num_nodes in NODES.items():
        gpu = find_gpu(slug)
        group = {"gpu": slug, "num_nodes": num_nodes, "gpus_per_node": GPUS_PER_NODE}
        groups.append({**group, **fields_of_links(table, gpu, SOURCE).fields})
    return {"name": "sailor-a100-v100", "source": SOURCE, "groups": groups}


def main() -> int:
    """Write all files."""
    parser = argparse.ArgumentParser(prog="benchmarks.sailor_data", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    OUT.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("layer_profiles/*/*/profile.json")):
        profile = profile_of(path)
        name = f"{profile.subject.model.name}-{profile.machine.gpu}.json"
        (OUT / name).write_text(text_of(profile), encoding="utf-8")
    written = yaml.safe_dump(cluster_of(folder), sort_keys=False, default_flow_style=None, width=120)
    (OUT / "cluster.yaml").write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
