"""One row for each field of a request: its type and range, its option and its question.

Everything that shows or reads a field is made from its row: the schema with OpenAPI and the reference pages
(``meshwright.service.requests.schema``), the command line (``meshwright.service.cli.options``), the web
form (``meshwright.service.web.questions``), and its way to the Problem and back
(``meshwright.service.requests.parse``). Help must show at once: nothing here loads the solver or pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.trained_layers import MAX_LAYERS_LENGTH

MAX_INTERVAL = 1_000_000  # steps
MAX_RANK = 65_536  # no hidden size so far exceeds it
MAX_SEQ_LENGTH = 10_000_000  # tokens; the longest contexts trained so far are an order below
MAX_IMAGES = 10_000  # of one sequence
MAX_TOP_K = 10_000
MAX_TIME_LIMIT_S = 86_400.0
MAX_NAMES = 64  # entries of an object with keys of the client's; there are fewer variables
MAX_CONSTRAINTS = 32
MAX_BATCH = 2**31 - 1
DEFAULT_PRIORITY = 5  # of 0, which goes first among the tenant's own, to 9
POST_TRAINING = "post_training"  # kind of a request that places the roles of a step
MAX_TOKENS = 10**18
MAX_POWER_KW = 1e7  # 10 GW: several of the largest data centres
MAX_GRID_CO2 = 2000.0  # g/kWh; coal plants emit 740 to 910 (IPCC AR5, WG III, annex III, table A.III.2)

Choices = tuple[tuple[str, str], ...]
# How a form takes a value. "numbers": 2,4 or 2:8; "names": q_proj, v_proj; "named": p50=900, p100=8192;
# "sized": such percentiles, or one number; "pins", "bounds", "values", "facts", "labels": NAME=VALUE
# on each line; "added": one more word of a list.
Kind = Literal[
    "text", "long", "number", "numbers", "choice", "lines", "check", "checks", "json", "names", "named",
    "sized", "pins", "bounds", "values", "facts", "labels", "added",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How the command line states a field."""

    help: str
    group: str = ""  # heading of the help
    default: str = ""  # in words, where it is not the field's
    name: str = ""  # where it is not the field's
    kind: type = str  # of one value, as it is typed
    repeats: bool = False  # --pin tp=8 --pin pp=4
    switch: bool = False  # --pareto, without --no-pareto
    metavar: str | None = None
    completes: str = ""  # function of meshwright.profiles that lists the values, as module:function
    more: tuple[str, ...] = ()  # completed in addition
    takers: Literal["all", "searches", "rankings", ""] = ""  # commands; by default: searches for search.*
    remembered: bool = False  # a person may have a default of it: a configuration file, MESHWRIGHT_NAME
    twice: str = ""  # how to say what a person means who gives it twice


@dataclass(frozen=True, slots=True, kw_only=True)
class FormQuestion:
    """How the web form asks for a field."""

    part: Literal["first", "nodes", "adapters", "config", "documents", "search", "sizes", "costs", "run"]
    label: str
    name: str = ""  # where it is not the field's
    kind: Kind = "text"
    hint: str = ""
    default: str = ""  # where it is not the field's
    choices: Choices = ()  # by default the words of the field's type
    unset: str = ""  # words of a first choice that leaves the field out
    suggestions: str = ""
    required: bool = False
    placeholder: str = ""
    instead_of: tuple[str, ...] = ()  # paths that it leaves out of the request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestField:
    """One field, or a part of one that has an option or a question of its own."""

    path: str  # workload.seq_length
    type: object = (
        None  # a type, or the name of one in ``schema.TYPES``; None: of a part, checked where it is read
    )
    about: str = ""
    default: object = ...  # a type makes an empty value; ``...``: required
    limits: Mapping[str, object] = field(default_factory=dict)  # arguments of pydantic's Field: ge, le, …
    # Left out of the canonical request where it has its default. True for every field that is added, so
    # that digests of stored problems stay; False for those that were always written.
    sparse: bool = False
    option: Option | None = None
    question: FormQuestion | None = None

    name: str = field(init=False)  # the last part of the path
    section: str = field(init=False)  # the path without the name; empty: the request itself

    def __post_init__(self) -> None:
        """Split the path once: each request reads its parts hundreds of times."""
        section, _, name = self.path.rpartition(".")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "section", section)

    @property
    def takers(self) -> str:
        """Return which commands take the option."""
        of_search = "searches" if self.section == "search" else "all"
        return (self.option.takers if self.option else "") or of_search

    @property
    def default_words(self) -> str:
        """Return the default of the option as help states it."""
        if self.option and self.option.default:
            return self.option.default
        if self.default is ...:
            return "required"
        return "none" if self.default in (None, list, dict) else f"{self.default}".removesuffix(".0")


COMMON, MODEL, CLUSTER = "Common options", "Model and data", "Cluster and software"
SEARCH, SIZES, WHOLE_RUN = "Search", "Sizes", "Whole run"
COUNTS = "N|N,N|LOW:HIGH"
TWO_KINDS = "For nodes of two kinds: --nodes 2xdgx-h100,4xdgx-a100"

FIELDS = (
    RequestField(
        path="model",
        type="NamedObject",
        about="a catalog name, alone or as name, an inline shape or a Hugging Face config",
        limits={"json_schema_extra": {"type": ["object", "string"]}},
        option=Option(
            group=COMMON,
            help="Catalog name, Hugging Face id, or config.json (./PATH).",
            completes="library:model_names",
            twice="Ask for one model at a time",
        ),
        question=FormQuestion(
            part="config",
            name="config",
            label="config.json of a model on Hugging Face",
            kind="json",
            hint="Drop or paste the file. It replaces the name above.",
        ),
    ),
    RequestField(
        path="model.name",
        question=FormQuestion(
            part="first",
            name="model",
            label="Model",
            suggestions="models",
            required=True,
            default="llama-3.1-70b",
            hint="catalog name, Hugging Face id, or one of your own",
        ),
    ),
    RequestField(
        path="cluster",
        type="NamedObject",
        about="a catalog name, alone or with num_nodes, or node groups inline",
        limits={"json_schema_extra": {"type": ["object", "string"]}},
        option=Option(
            remembered=True,
            group=COMMON,
            help="Catalog name, cloud instance (p5.48xlarge), GPU type, file, or here for this machine.",
            default="required, or --gpu, --gpus or --nodes",
            completes="library:cluster_names",
            twice=TWO_KINDS,
        ),
    ),
    RequestField(
        path="cluster.name",
        question=FormQuestion(
            part="first",
            name="cluster",
            label="GPU or node type",
            suggestions="hardware",
            required=True,
            default="dgx-h100",
            hint="a100-40gb, dgx-h100, p5.48xlarge, or one of your own",
        ),
    ),
    RequestField(
        path="cluster.groups",
        option=Option(
            remembered=True,
            group=COMMON,
            name="gpu",
            help='GPU type, instead of --cluster: h100, "NVIDIA A100-SXM4-40GB", 4090.',
            default="none",
            completes="library:gpu_names",
            twice=TWO_KINDS,
        ),
    ),
    RequestField(
        path="cluster.nodes",
        option=Option(
            group=COMMON,
            help="Nodes by kind, instead of --cluster: 2xdgx-h100,4xdgx-a100.",
            default="none",
            metavar="NxNODE[,…]",
            twice=TWO_KINDS,
        ),
        question=FormQuestion(
            part="nodes",
            name="nodes",
            label="Nodes of several types",
            placeholder="2 x dgx-h100, 4 x dgx-a100",
            hint="Replaces the type and the number of GPUs above.",
            instead_of=("cluster.name", "cluster.num_gpus"),
        ),
    ),
    RequestField(
        path="cluster.num_gpus",
        option=Option(
            group=CLUSTER,
            help="Number of GPUs, instead of --num-nodes: one node, or several usual ones.",
            default="from the nodes",
            kind=int,
        ),
        question=FormQuestion(part="first", label="GPUs", kind="number", default="128", hint="in all"),
    ),
    RequestField(
        path="cluster.num_nodes",
        option=Option(
            remembered=True,
            group=COMMON,
            help="Number of nodes; a list or range lets the search choose.",
            default="1",
            metavar=COUNTS,
            twice="For the search to choose: --num-nodes 2,4",
        ),
        question=FormQuestion(
            part="nodes",
            label="Nodes",
            kind="numbers",
            hint="Replaces the number of GPUs. To let the search choose: 2,4 or 2:8.",
            instead_of=("cluster.num_gpus",),
        ),
    ),
    RequestField(
        path="cluster.gpus_per_node",
        option=Option(
            remembered=True,
            group=CLUSTER,
            help="GPUs of one node, with --gpu.",
            default="from its usual node",
            kind=int,
        ),
        question=FormQuestion(
            part="nodes",
            label="GPUs per node",
            kind="number",
            hint="Empty: as in the usual node of this GPU.",
        ),
    ),
    RequestField(path="workload", type="WorkloadRequest"),
    RequestField(
        path="workload.global_batch_size",
        type="Batches",
        about="sequences per optimizer step: one number, a list, or a range by doubling",
        option=Option(
            remembered=True,
            group=COMMON,
            help="Sequences per optimizer step: 512, 4M tokens (4M), or with their length (512x8192).",
            metavar=f"{COUNTS}|NxLENGTH",
            twice="For the search to choose: --global-batch-size 256,512",
        ),
        question=FormQuestion(
            part="first",
            name="batch",
            label="Batch",
            kind="numbers",
            default="512",
            hint="sequences per step; to compare several: 256,512",
            required=True,
        ),
    ),
    RequestField(
        path="workload.seq_length",
        type=int,
        about="tokens per sequence",
        limits={"ge": 1, "le": MAX_SEQ_LENGTH},
        option=Option(
            remembered=True, group=COMMON, help="Tokens per sequence, e.g. 8192 or 8k.", kind=int
        ),
        question=FormQuestion(
            part="first",
            label="Sequence length",
            kind="number",
            default="8192",
            hint="tokens",
            required=True,
        ),
    ),
    RequestField(
        path="workload.precision",
        type=Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32"],
        default="bf16",
        about="unstated: fp16 where a GPU has no bf16. fp32 multiplies in TF32 if the GPU has it "
        "(tf32_products of framework_options). mxfp8 and nvfp4 mean fp8 with the recipe of that name "
        "(precision_recipe of framework_options)",
        option=Option(
            remembered=True,
            group=COMMON,
            help="bf16, fp16, fp8, mxfp8, nvfp4 or fp32.",
            default="bf16, or fp16 where a GPU lacks it",
        ),
        question=FormQuestion(part="first", label="Precision", kind="choice", unset="automatic"),
    ),
    RequestField(
        path="workload.optimizer",
        type="Optimizer",
        default="adamw",
        option=Option(remembered=True, group=MODEL, help=f"{', '.join(OPTIMIZERS)}."),
        question=FormQuestion(part="first", label="Optimizer", kind="choice"),
    ),
    RequestField(
        path="workload.optimizer_rank",
        type=int,
        default=0,
        limits={"ge": 0, "le": MAX_RANK},
        about="rank of GaLore's or APOLLO's projection (0: a quarter of the hidden size)",
    ),
    RequestField(
        path="workload.optimizer_interval",
        type=int,
        default=0,
        limits={"ge": 0, "le": MAX_INTERVAL},
        sparse=True,
        about="steps between new projections of GaLore or APOLLO (update_proj_gap, 0: 200)",
    ),
    RequestField(
        path="workload.lora_rank",
        type=int,
        default=0,
        limits={"ge": 0, "le": MAX_RANK},
        about="rank of LoRA adapters (0 trains all weights)",
        option=Option(group=MODEL, help="LoRA rank (0 trains the full model).", kind=int),
        question=FormQuestion(
            part="first",
            label="LoRA rank",
            kind="number",
            placeholder="none",
            hint="16 is usual. Empty trains all weights",
        ),
    ),
    RequestField(
        path="workload.lora_targets",
        type="LoraTargets",
        default=None,
        about="linear layers with adapters, if lora_rank > 0: Megatron-Core's fused layers (including "
        "routed experts) or transformers' single layers. vision.qkv_proj and the like select layers of "
        "a vision tower, projector all of its projector. all-linear selects every layer of the language "
        "model by the launcher's names. null selects the launcher's default, and all-linear for launcher "
        "any",
        option=Option(
            group=MODEL,
            name="lora_target",
            help="Modules that LoRA adapts, e.g. q_proj, vision.qkv_proj, projector, or all-linear.",
            default="the launcher's own",
            repeats=True,
            metavar="NAME",
        ),
        question=FormQuestion(
            part="adapters",
            label="LoRA targets",
            kind="names",
            placeholder="all-linear",
            hint="q_proj, v_proj, …; empty: the launcher's own",
        ),
    ),
    RequestField(
        path="workload.base_precision",
        type="BasePrecision",
        default="bf16",
        sparse=True,
        about="storage of the frozen weights, if lora_rank > 0: bf16 or fp32 for all, or int8 or nf4 "
        "for linear layers as in bitsandbytes (LLM.int8, QLoRA). nf4-double also quantizes nf4's "
        "scales. gptq, gptq-8bit, awq and aqlm are those of a checkpoint that is stored so, and nvfp4 "
        "that of its experts alone (Axolotl's SonicMoE or ScatterMoE)",
        option=Option(
            group=MODEL,
            help="Storage type of the frozen weights: bf16, fp32, int8, nf4 or nf4-double (QLoRA), or as a "
            "checkpoint is stored: gptq, gptq-8bit, awq, aqlm, nvfp4.",
        ),
        question=FormQuestion(
            part="first",
            label="Base weights",
            kind="choice",
            choices=(
                ("bf16", "bf16"),
                ("nf4", "4-bit (QLoRA)"),
                ("nf4-double", "4-bit, double"),
                ("int8", "8-bit"),
                ("gptq", "GPTQ checkpoint"),
                ("awq", "AWQ checkpoint"),
                ("fp32", "fp32"),
            ),
            hint="frozen under LoRA; double: quantized scales",
        ),
    ),
    RequestField(
        path="workload.trained_modules",
        type="TrainedModules",
        default=[],
        sparse=True,
        about="modules trained in full next to adapters (lora_rank > 0) or to trained_layers, by Llama's "
        "names. Next to adapters each is a copy, like peft's modules_to_save, and norm selects every norm. "
        "Next to trained_layers, embed_tokens and lm_head are trained with these layers",
        option=Option(
            group=MODEL,
            name="trained_module",
            help="Modules trained in full next to LoRA or trained layers: embed_tokens, lm_head, norm.",
            default="none",
            repeats=True,
            metavar="NAME",
        ),
        question=FormQuestion(
            part="adapters",
            label="Trained in full next to LoRA",
            kind="checks",
            choices=(("embed_tokens", "embedding"), ("lm_head", "output head"), ("norm", "norms")),
        ),
    ),
    RequestField(
        path="workload.lengths",
        type="Object",
        default=None,
        sparse=True,
        limits={"max_length": MAX_NAMES},
        about="document lengths, if not all are seq_length: percentiles "
        '({"p50": 900, "p100": 8192}) or histogram ([{"length": 900, "share": 0.5}, ...]), and batching, '
        "packing (the default), padding or padding_to_longest",
        option=Option(
            group=MODEL,
            help="Document lengths: percentiles (p50=900,p100=8192) or a file.",
            default="full sequences",
            metavar="FILE|pN=N,…",
        ),
    ),
    RequestField(
        path="workload.lengths.percentiles",
        question=FormQuestion(
            part="documents",
            name="lengths",
            label="Tokens of a document",
            kind="named",
            placeholder="p50=900, p90=4000, p100=8192",
            hint="percentiles; p100, the longest, must be among them",
        ),
    ),
    RequestField(
        path="workload.lengths.batching",
        option=Option(
            group=MODEL,
            help="How documents become sequences: packing, padding or padding_to_longest.",
            default="packing",
        ),
        question=FormQuestion(
            part="documents",
            label="Batch documents by",
            kind="choice",
            unset="full length",
            choices=(
                ("packing", "packing"),
                ("padding", "padding"),
                ("padding_to_longest", "padding to longest"),
            ),
        ),
    ),
    RequestField(
        path="workload.images_per_sample",
        type=float,
        default=None,
        sparse=True,
        limits={"ge": 0, "le": MAX_IMAGES, "allow_inf_nan": False},
        about="average number of images per sequence, required for a model with a vision tower. Image "
        "tokens are part of seq_length. 0 means text only: the tower's weights without its work",
        option=Option(
            group=MODEL,
            help="Average number of images per sequence, e.g. 1.5 (vision models, 0 for text only).",
            default="none",
            kind=float,
        ),
        question=FormQuestion(
            part="documents",
            label="Images per sequence",
            kind="number",
            hint="for models with a vision tower (0: text only)",
        ),
    ),
    RequestField(
        path="workload.image_tokens",
        type="ImageTokens",
        default=None,
        sparse=True,
        about="tokens per image in the language model: a number, or percentiles "
        '({"p50": 256, "p100": 1024}). null means one tile, if the tower has tiles of one size',
        option=Option(
            group=MODEL,
            help="Tokens per image: 256, or percentiles (p50=256,p100=1024).",
            default="one tile's",
            metavar="N|pN=N,…",
        ),
        question=FormQuestion(
            part="documents",
            label="Tokens per image",
            kind="sized",
            placeholder="256",
            hint="pixels / (patch size × merge size)², or percentiles: p50=256, p100=1024",
        ),
    ),
    RequestField(
        path="workload.trained_layers",
        type=str,
        default=None,
        limits={"max_length": MAX_LAYERS_LENGTH},
        sparse=True,
        about="the only layers that are trained, counted from 0, as ranges with both ends: 28-31, or "
        "7,15,23,31, or none. Other weights are frozen, but for trained_modules. null: all are trained",
        option=Option(
            group=MODEL,
            help="Layers to train, counted from 0, e.g. 28-31. All others are frozen.",
            default="all",
            metavar="RANGES",
        ),
        question=FormQuestion(
            part="adapters",
            label="Trained layers",
            kind="text",
            placeholder="all",
            hint="28-31, or 7,15,23,31: all others are frozen",
        ),
    ),
    RequestField(
        path="workload.frozen",
        type="FrozenParts",
        default=[],
        sparse=True,
        about="frozen parts of a model with a vision tower: vision (the tower), projector, language. "
        "With adapters, all parts are frozen",
        option=Option(
            group=MODEL,
            name="freeze",
            help="Part to freeze: vision (the tower), projector or language.",
            default="none",
            repeats=True,
            metavar="PART",
        ),
        question=FormQuestion(
            part="adapters",
            label="Frozen parts of a vision model",
            kind="checks",
            choices=(
                ("vision", "vision tower"),
                ("projector", "projector"),
                ("language", "language model"),
            ),
        ),
    ),
    RequestField(
        path="workload.sample",
        type="SampleKind",
        default="sequence",
        sparse=True,
        about="what a batch is made of: sequence, pair (a chosen and a rejected answer of seq_length "
        "tokens each: DPO, rewards), triple (and a third answer that is learnt: TPO) or unpaired (one "
        "answer, and another one's score: KTO). Batches count samples",
        option=Option(
            group=MODEL,
            help="Samples of a batch: sequence, pair (DPO, rewards), triple (TPO) or unpaired (KTO).",
        ),
        question=FormQuestion(
            part="adapters",
            label="Samples",
            kind="choice",
            choices=(
                ("sequence", "sequences"),
                ("pair", "pairs: DPO, rewards"),
                ("triple", "triples: TPO"),
                ("unpaired", "unpaired answers: KTO"),
            ),
            hint="of preference training: pairs of answers",
        ),
    ),
    RequestField(
        path="workload.reference",
        type="Reference",
        default="none",
        sparse=True,
        about="model that scores each sample once more without gradients: none, frozen (a copy of the "
        "model in base_precision bf16 or fp32) or adapters-off (the model without its adapters)",
        option=Option(
            group=MODEL, help="Reference model of preference training: none, frozen or adapters-off."
        ),
        question=FormQuestion(
            part="adapters",
            label="Reference model",
            kind="choice",
            choices=(
                ("none", "none"),
                ("frozen", "frozen copy"),
                ("adapters-off", "adapters turned off"),
            ),
            hint="scores pairs without gradients: DPO, KTO",
        ),
    ),
    RequestField(
        path="workload.framework_options",
        type="Overrides",
        default=dict,
        limits={"max_length": MAX_NAMES},
        about="overrides of the framework's facts, e.g. gradient_dtype",
        option=Option(
            group=SIZES,
            help="Override a fact of the framework: gradient_dtype=bf16 (meshwright values "
            "framework-options).",
            default="the framework's own",
            repeats=True,
            metavar="NAME=VALUE",
        ),
        question=FormQuestion(
            part="sizes",
            label="Facts of the framework",
            kind="facts",
            placeholder="gradient_dtype=bf16",
            hint="one on each line, instead of the framework's own",
        ),
    ),
    RequestField(
        path="workload.total_tokens",
        type=int,
        default=None,
        limits={"ge": 1, "le": MAX_TOKENS},
        about="tokens in the whole run",
        option=Option(
            group=WHOLE_RUN,
            help="Tokens in the whole training run, e.g. 15T.",
            kind=float,
            takers="searches",
        ),
        question=FormQuestion(
            part="costs", label="Tokens of the whole run", kind="number", placeholder="15T"
        ),
    ),
    RequestField(
        path="launcher",
        type=str,
        default=None,
        limits={"max_length": 64},
        about="the training framework, any (compare all) or none. Default: the first that supports the "
        "request, such as megatron-lm for pre-training or trl for adapters",
        option=Option(
            remembered=True,
            group=COMMON,
            help="megatron-lm, torchtitan, …, any or none.",
            default="the first that supports the request",
            completes="capabilities:launcher_names",
            more=("any", "none"),
            twice="To compare all: --launcher any",
        ),
        question=FormQuestion(
            part="first",
            label="Launcher",
            kind="choice",
            unset="automatic",
            hint="framework that trains",
        ),
    ),
    RequestField(
        path="stack",
        type=str,
        default=None,
        sparse=True,
        limits={"max_length": 64},
        about="an older software stack to predict with, such as megatron-lm-2021 or fsdp1",
        option=Option(
            group=CLUSTER,
            help="Older software stack to predict with: megatron-lm-2021, fsdp1, …",
            default="the current one",
            completes="frameworks:framework_names",
        ),
        question=FormQuestion(
            part="search",
            label="Software stack",
            kind="choice",
            unset="the current one",
            hint="to price the launcher as an older release",
        ),
    ),
    RequestField(path="search", type="SearchRequest", default=dict),
    RequestField(
        path="search.objective",
        type="Objective",
        default="step_time",
        option=Option(
            remembered=True,
            group=SEARCH,
            help="step_time, tokens_per_s_per_gpu, gpu_hours_per_token, energy_per_token or robust.",
        ),
        question=FormQuestion(
            part="search",
            label="Optimize for",
            kind="choice",
            choices=(
                ("step_time", "step time"),
                ("tokens_per_s_per_gpu", "tokens/s per GPU"),
                ("gpu_hours_per_token", "GPU hours per token"),
                ("energy_per_token", "energy per token"),
                ("robust", "90th-percentile step time"),
            ),
        ),
    ),
    RequestField(
        path="search.top_k",
        type=int,
        default=10,
        limits={"ge": 1, "le": MAX_TOP_K},
        about="number of plans to rank",
        option=Option(
            remembered=True, group=SEARCH, help="Number of plans to rank.", kind=int, takers="rankings"
        ),
        question=FormQuestion(part="search", label="Plans", kind="number", hint="how many to rank"),
    ),
    RequestField(
        path="search.diverse",
        type=bool,
        default=True,
        about="only the best plan of each mesh, without variants in ZeRO stage or micro-batch",
        option=Option(
            group=SEARCH,
            help="List the best plan of each mesh first, or also plans that differ only in ZeRO stage or "
            "micro-batch.",
            default="--diverse",
            kind=bool,
            takers="rankings",
        ),
        question=FormQuestion(
            part="search",
            label="Rank",
            kind="choice",
            default="true",
            choices=(("true", "the best of each layout"), ("false", "variants of a layout too")),
            hint="variants differ in ZeRO stage and micro-batch",
        ),
    ),
    RequestField(
        path="search.baseline",
        type="Object",
        default=None,
        sparse=True,
        about="your own configuration, predicted and ranked with the plans",
        option=Option(
            group=SEARCH,
            help="File with your configuration, to rank it with the plans.",
            kind=Path,
            takers="rankings",
        ),
        question=FormQuestion(
            part="search",
            label="Your own configuration, to rank it with the plans",
            kind="json",
            placeholder='{"tp": 4, "pp": 4, "mbs": 1}',
            hint="The name and value of each size, as JSON. Left out: chosen as a launcher does.",
        ),
    ),
    RequestField(
        path="search.time_limit_s",
        type=float,
        default=30.0,
        limits={"gt": 0, "le": MAX_TIME_LIMIT_S},
        option=Option(
            remembered=True, group=SEARCH, help="Time limit of the search, in seconds.", kind=float
        ),
        question=FormQuestion(part="search", label="Time limit", kind="number", hint="seconds of search"),
    ),
    RequestField(
        path="search.seed",
        type=int,
        default=0,
        limits={"ge": 0, "le": 2**31 - 1},
        option=Option(group=SEARCH, help="Random seed. The same seed gives the same answer.", kind=int),
        question=FormQuestion(part="search", label="Seed", kind="number"),
    ),
    RequestField(
        path="search.certify",
        type="Certify",
        default="cp-sat",
        option=Option(
            group=SEARCH,
            help="CP-SAT chooses the best plan (cp-sat), also checks each plan (cp-sat-all), or none.",
        ),
        question=FormQuestion(
            part="search",
            label="Decide with CP-SAT",
            kind="choice",
            choices=(("cp-sat", "the best plan"), ("cp-sat-all", "every plan"), ("none", "no plan")),
            hint="a second solver chooses too: both must agree",
        ),
    ),
    RequestField(
        path="search.max_out_of_memory_probability",
        type=float,
        default=0.05,
        limits={"gt": 0, "lt": 1},
        option=Option(
            remembered=True,
            group=SEARCH,
            name="max_oom_probability",
            help="Highest acceptable probability of running out of memory.",
            kind=float,
            takers="all",
        ),
        question=FormQuestion(
            part="search",
            name="risk",
            label="Accepted risk",
            kind="number",
            hint="of running out of memory: 0.05 or 5%",
        ),
    ),
    RequestField(
        path="search.gpus",
        type=Literal["all", "fewest"],
        default="all",
        about="all: the fastest number of GPUs. fewest: the smallest number of nodes with a plan",
        option=Option(
            group=COMMON,
            help="GPUs by type, instead of --cluster: 64xH100, 4xA100-40GB. Or all or fewest, for how "
            "many to use.",
            metavar="NxGPU|all|fewest",
            takers="all",
            twice="For two types: --gpus 16xH100,32xA100. For the fewest: --gpu h100 --gpus fewest",
        ),
        question=FormQuestion(
            part="nodes",
            label="Use",
            kind="choice",
            choices=(("all", "as many GPUs as are fastest"), ("fewest", "the fewest GPUs that fit")),
        ),
    ),
    RequestField(
        path="search.num_nodes",
        type="NodeCounts",
        default=None,
        about="numbers of nodes that a plan may use (default: all nodes)",
    ),
    RequestField(
        path="search.reserve_nodes",
        type=int,
        default=0,
        limits={"ge": 0, "le": MAX_BATCH},
        about="nodes to keep spare",
        option=Option(group=CLUSTER, help="Number of nodes to keep spare.", kind=int, takers="all"),
        question=FormQuestion(part="nodes", label="Spare nodes", kind="number"),
    ),
    RequestField(
        path="search.max_power_kw",
        type=float,
        default=None,
        sparse=True,
        limits={"gt": 0, "le": MAX_POWER_KW},
        about="power limit for all of a plan's GPUs at full load, in kilowatts, without hosts, network "
        "and cooling",
        option=Option(
            group=CLUSTER,
            help="Power limit for all GPUs, in kW, without hosts: 500.",
            kind=float,
        ),
        question=FormQuestion(
            part="nodes", label="Power limit", kind="number", hint="kW of all GPUs, without hosts"
        ),
    ),
    RequestField(
        path="search.deadline_days",
        type=float,
        default=None,
        limits={"gt": 0},
        about="days to train workload.total_tokens",
        option=Option(group=WHOLE_RUN, help="Finish --total-tokens within this many days.", kind=float),
        question=FormQuestion(part="costs", label="Deadline of the run", kind="number", hint="days"),
    ),
    RequestField(
        path="search.gpu_hour_price",
        type=float,
        default=None,
        limits={"ge": 0},
        about="price of one GPU-hour in any currency",
        option=Option(
            remembered=True, group=WHOLE_RUN, help="Price of one GPU-hour, to report cost.", kind=float
        ),
        question=FormQuestion(
            part="costs", label="Price of a GPU-hour", kind="number", hint="in any currency, to report cost"
        ),
    ),
    RequestField(
        path="search.grid_co2_g_per_kwh",
        type=float,
        default=None,
        sparse=True,
        limits={"ge": 0, "le": MAX_GRID_CO2},
        about="the grid's CO2 emissions in g/kWh, to report the CO2 of training workload.total_tokens",
        option=Option(
            remembered=True,
            group=WHOLE_RUN,
            help="The grid's CO2 emissions in g/kWh, e.g. 400, to report CO2 for --total-tokens.",
            kind=float,
        ),
        question=FormQuestion(
            part="costs", label="CO2 of the grid", kind="number", hint="grams per kWh, to report CO2"
        ),
    ),
    RequestField(path="search.reliability", type="ReliabilityRequest", default=dict),
    RequestField(
        path="search.pin",
        type="Pins",
        default=dict,
        limits={"max_length": MAX_NAMES},
        about="variable: its only value (stage_layers: the layers of each chunk)",
        option=Option(
            group=SIZES,
            help="Fix a size: tp=8, pp=4, or tensor_parallel_size=8.",
            repeats=True,
            metavar="NAME=VALUE",
        ),
        question=FormQuestion(
            part="sizes",
            label="Fix other sizes",
            kind="pins",
            placeholder="offload=optimizer",
            hint="one on each line, by its name",
        ),
    ),
    RequestField(
        path="search.bounds",
        type="Bounds",
        default=dict,
        limits={"max_length": MAX_NAMES},
        about="variable: [lowest, highest], both included",
        option=Option(
            group=SIZES,
            name="bound",
            help="Lower and upper bound, inclusive: mbs=1:4.",
            repeats=True,
            metavar="NAME=LOW:HIGH",
        ),
        question=FormQuestion(
            part="sizes",
            label="Limit sizes",
            kind="bounds",
            placeholder="mbs=1:4",
            hint="lowest and highest, one size on each line",
        ),
    ),
    RequestField(
        path="search.forbid",
        type="Prohibitions",
        default=dict,
        limits={"max_length": MAX_NAMES},
        about="variable: values to avoid",
        option=Option(group=SIZES, help="Values to avoid: tp=8.", repeats=True, metavar="NAME=V[,V]"),
        question=FormQuestion(
            part="sizes",
            label="Avoid values",
            kind="values",
            placeholder="tp=8",
            hint="one size on each line",
        ),
    ),
    RequestField(
        path="search.allow",
        type="Allowed",
        default=list,
        limits={"max_length": MAX_NAMES},
        about="options to search beyond a stock installation: offload, fp8, other optimizers, or a "
        "switch including settings that need a package. switches allows every such setting, "
        "except of switches that need their own name (torch_compile, loss_kernel). none "
        "allows only the switches that you name",
        option=Option(
            group=SIZES,
            help="Also search offload, fp8, an optimizer or a switch. switches: all, including those that "
            "need a package. none: no switches.",
            default="the switches of a stock installation",
            repeats=True,
            metavar="NAME",
        ),
    ),
    RequestField(
        path="search.constraints",
        type="Constraints",
        default=list,
        limits={"max_length": MAX_CONSTRAINTS},
        about="expressions that must hold, e.g. zero_stage == 3 => pipeline_parallel_size == 1",
        option=Option(
            group=SIZES,
            name="constraint",
            help="Constraint on every plan: 'tp * cp <= 8'.",
            repeats=True,
            metavar="EXPRESSION",
        ),
        question=FormQuestion(
            part="sizes",
            label="Constraints",
            kind="lines",
            hint="one on each line",
            placeholder="zero_stage == 3 => pipeline_parallel_size == 1",
        ),
    ),
    RequestField(
        path="search.differ",
        type="Differ",
        default=[],
        sparse=True,
        about="sizes in which further plans near the first differ: the best plan of each combination",
        option=Option(
            group=SEARCH,
            help="Also list the best plan of each combination of these sizes: tp,pp.",
            default="none",
            repeats=True,
            metavar="NAME[,NAME]",
            takers="rankings",
        ),
        question=FormQuestion(
            part="search",
            label="List plans that differ in",
            kind="names",
            placeholder="tp, pp",
            hint="the best plan of each combination of these sizes",
        ),
    ),
    RequestField(
        path="search.within",
        type=float,
        default=0.1,
        sparse=True,
        limits={"gt": 0, "le": 1},
        about="by which the plans of `differ` may be worse than the first, as a share",
        option=Option(
            group=SEARCH,
            help="How much slower plans of --differ may be, as a share: 0.05.",
            kind=float,
            takers="rankings",
        ),
        question=FormQuestion(
            part="search",
            label="As far as",
            kind="number",
            hint="a share by which these may be worse than the first, e.g. 0.05",
        ),
    ),
    RequestField(
        path="search.pareto",
        type=bool,
        default=False,
        about="also report the Pareto front of step time and peak memory",
        option=Option(
            group=SEARCH,
            help="Also report the Pareto front of step time and memory.",
            default="off",
            kind=bool,
            switch=True,
            takers="rankings",
        ),
        question=FormQuestion(
            part="search",
            label="Show time against memory",
            kind="check",
            hint="the trade-off between step time and peak memory",
        ),
    ),
    RequestField(
        path="profile",
        type=str,
        default=None,
        sparse=True,
        limits={"min_length": 1, "max_length": 200},
        about="id of a stored profile. `latest` (default) is the service's newest calibration of this "
        "cluster, and `catalog` uses only the catalog. In a problem file: the path of a profile "
        "file",
        question=FormQuestion(
            part="run",
            label="Profile",
            suggestions="profiles",
            hint="id of a calibration or a measured profile",
        ),
    ),
)
OPTIONS: Mapping[str, RequestField] = {one.option.name or one.name: one for one in FIELDS if one.option}


def patch_of(tip: str) -> dict[str, object] | None:
    """Return options of a tip as a JSON merge patch (RFC 7396) of a request; None if no field has them."""
    name, _, value = tip.removeprefix("--").partition(" ")
    row = OPTIONS.get(name.replace("-", "_"))
    if row is None or row.option is None or not row.type or row.option.repeats or " " in value:
        return None
    patch: object = row.option.kind(value)
    for part in reversed(row.path.split(".")):
        patch = {part: patch}
    return cast("dict[str, object]", patch)


def tip_of(patch: object) -> str:
    """Return the options of a tip from its merge patch; empty if there is none."""
    path, value = list[str](), patch
    while isinstance(value, Mapping) and len(value) == 1:
        ((part, value),) = value.items()
        path.append(str(part))
    name = next((name for name, row in OPTIONS.items() if row.path == ".".join(path)), None)
    return "" if name is None else f"--{name.replace('_', '-')} {value}"


def options_of(takers: str) -> frozenset[str]:
    """Return the options that such commands alone take."""
    return frozenset(name for name, one in OPTIONS.items() if one.takers == takers)
