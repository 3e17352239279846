"""Every key of the configuration of `fit`, `plan` and `selftest`. In: values. Out: frozen models.
Reads no file.

What a person must choose has no default. `null` is documented wherever it is allowed. Derived
numbers live in `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from stream_pretrain.config.checks import CHECKS
from stream_pretrain.config.types import (
    ByteSize,
    Check,
    Count,
    Endpoint,
    LocalPath,
    Location,
    PositiveCount,
    Precision,
    Seconds,
    Section,
    Settings,
    StepsTokensOrFraction,
    TrainingDuration,
)

Policy = Literal["refuse", "accept"]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class RunConfig(Section):
    """Where the run lives and how it starts again."""

    dir: Location
    """Run directory: a local path or a bucket URL. Config, checkpoints and metrics go there."""

    name: str | None = None
    """Name in logs and reports; null: the last part of `dir`."""

    seed: Count = 1234
    """Decides the first weights and, unless `data.shuffle.seed` is set, the order of the data."""

    resume: Literal["auto", "never"] | Annotated[int, Field(ge=0)] = "auto"
    """`auto`: from the newest whole checkpoint, else from the start; `never`: refuse a run
    directory that is not empty; a number: from exactly that step's checkpoint."""

    on_data_change: Policy = "refuse"
    """When the data fingerprint differs from the checkpoint's: `accept` starts a new, recorded
    phase."""

    on_config_change: Policy = "refuse"
    """When optimizer settings or the schedule differ from the checkpoint's: `accept` goes on with
    the new ones."""

    @property
    def label(self) -> str:
        """`name`, or the last part of `dir`."""
        return self.name or PurePosixPath(self.dir.rstrip("/")).name or "run"


class StorageConfig(Section):
    """How buckets are reached. Credentials come from the environment, a profile or the machine's
    role, never from here."""

    endpoint_url: Endpoint | None = None
    """Address of an S3-compatible service (R2, MinIO, OCI); null: `AWS_ENDPOINT_URL`,
    `S3_ENDPOINT_URL`, else AWS."""

    region: str | None = None
    """Region of the bucket; null: from the environment or profile."""

    profile: str | None = None
    """Profile in the AWS configuration files; needs the extra `aws`."""

    anonymous: bool = False
    """Send requests unsigned, for public buckets."""

    requester_pays: bool = False
    """Accept the costs of a requester-pays bucket."""

    retries: PositiveCount = 8
    """Attempts for each request, with growing waits between them."""

    timeout: Seconds = 30.0
    """Time without an answer after which one request has failed."""

    deadline: Seconds = 600.0
    """Time after which one file, all attempts together, has failed."""

    def overridden_by(self, other: StorageConfig | None) -> StorageConfig:
        """These settings, replaced by whatever `other` sets explicitly."""
        given = {name: getattr(other, name) for name in other.model_fields_set} if other else {}
        return self.model_copy(update=given)


class ModelConfig(Section):
    """The architecture. At least one of `name`, `config` and `init_from`."""

    name: str | None = None
    """Any LitGPT config name, such as `pythia-160m`, or `module:factory` for a model of your own,
    whose factory reads `config` as it likes."""

    config: Mapping[str, Any] | None = None
    """LitGPT `Config` fields. With `name` they replace that config's fields, alone they are the
    whole config."""

    init_from: LocalPath | None = None
    """LitGPT or Hugging Face checkpoint directory whose weights the run starts from (continued
    pretraining)."""

    tie_embeddings: bool | None = None
    """Share the input and output embedding matrices; null: as the architecture says."""

    document_mask: bool = False
    """Keep documents within a sample apart: attention inside a document only, positions restart
    with each."""


class StreamConfig(Section):
    """One stream of samples: a dataset (it has `dataset.json`) or bare MDS shards (it has
    `index.json`)."""

    remote: Location | None = None
    """URL or path that the shards are fetched from."""

    local: LocalPath | None = None
    """With `remote` its cache directory; alone the directory of the data itself."""

    split: str | None = None
    """Split of a dataset; null: `train` or `validation`, as the list says. Not for bare streams."""

    name: str | None = None
    """Unique name in metrics; null: the last part of the path."""

    weight: Positive | None = None
    """Share of the samples, relative to the other streams' weights. All streams have one, or
    none."""

    repeat: Positive | None = None
    """Times that the stream is seen in an epoch; null: once."""

    storage: StorageConfig | None = None
    """Overrides of the `storage` section for this stream."""

    @property
    def location(self) -> str:
        """Where the data itself is."""
        return self.remote or self.local or ""

    @property
    def label(self) -> str:
        """`name`, or the last part of the location."""
        return self.name or PurePosixPath(self.location.rstrip("/")).name or "stream"


class ShuffleConfig(Section):
    """The order of samples within an epoch. Each key is part of the data fingerprint."""

    algo: Literal["py1br", "py1e", "py1s", "py2s", "naive", "none"] = "py1e"
    """Streaming's shuffle algorithm; `none`: in the order of the shards. `py1e` mixes best for the
    shards that it needs at once, `py1s` and `py2s` need fewest."""

    block_size: PositiveCount | None = None
    """Samples that `py1br` and `py1e` shuffle together in each canonical node; null: 4194304 over
    the canonical nodes, at least four shards. More mixes better and must fetch more at once."""

    seed: Count | None = None
    """Seed of the order; null: `run.seed`."""

    canonical_nodes: PositiveCount | None = None
    """Parts that an epoch is cut into; null: the largest divisor of the global batch up to 64."""

    sampling_granularity: PositiveCount = 1
    """Samples picked together where an epoch draws only a part of a shard. Higher starts an epoch
    faster."""


class CacheConfig(Section):
    """Where fetched shards lie."""

    dir: LocalPath | None = None
    """Directory for the shards of remote streams without `local`, and for those that a local
    dataset holds compressed; null: `stream-pretrain` in the user's cache directory."""

    limit: ByteSize | None = None
    """Delete shards not needed now beyond this size; null: keep all. Refused with a stream that is
    local only."""


class DataConfig(Section):
    """What is trained on."""

    train: Annotated[tuple[StreamConfig, ...], Field(min_length=1, strict=False)]
    """Streams to train on. On the command line a JSON list."""

    validation: Annotated[tuple[StreamConfig, ...], Field(strict=False)] = ()
    """Streams to evaluate on, each on its own; empty: the validation splits of the training
    datasets."""

    seq_len: PositiveCount | None = None
    """Inputs per sample; only for streams without a card (rows hold `seq_len + 1` ids)."""

    tokenizer: LocalPath | None = None
    """Directory or `tokenizer.json`; only for streams without a card."""

    truncate: bool = False
    """Cut rows that are longer than `seq_len + 1` instead of refusing them."""

    batching: Literal["random", "stratified"] = "random"
    """How streams mix: at random, or every global batch with the same share of each stream. Without
    weights, the latter ends an epoch when the first stream has been read."""

    shuffle: ShuffleConfig = ShuffleConfig()
    """The order of samples."""

    cache: CacheConfig = CacheConfig()
    """The shards kept on this machine."""

    workers: Count = 2
    """DataLoader worker processes per rank; 0: read in the training process."""

    verify: Literal["arrival", "full", "sizes"] = "arrival"
    """`arrival`: check a shard's hash when it is fetched; `full`: cached shards too, at start;
    `sizes`: no hashes."""

    warn_after: Seconds = 30.0
    """Wait for data after which the run says which shard it waits for, and from where."""


class BatchConfig(Section):
    """How many samples go together."""

    global_size: PositiveCount
    """Samples in an optimizer step, over all ranks and accumulation. Fixed for a run."""

    micro_size: PositiveCount | None = None
    """Samples per rank in a forward pass; null: a rank's whole share of the global batch. Free to
    change at a resume."""


class StopConfig(Section):
    """When the run is finished: at least one limit, and the first reached counts."""

    max_tokens: PositiveCount | None = None
    """Target tokens (`global batch x seq_len` a step), rounded up to whole steps."""

    max_steps: PositiveCount | None = None
    """Optimizer steps."""

    max_epochs: PositiveCount | None = None
    """Passes over the data."""

    max_time: Seconds | None = None
    """Time spent training, all starts together."""


class OptimizerConfig(Section):
    """The update rule."""

    name: str = "adamw"
    """`adamw`, `muon` (hidden matrices; AdamW for the rest), a class of `torch.optim` by path
    (`torch.optim.Adafactor`), or `module:name` for a class or function of your own."""

    lr: Positive
    """Peak learning rate."""

    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.95)
    """AdamW's decay rates of the moments."""

    eps: Positive = 1e-8
    """AdamW's term for numerical stability."""

    weight_decay: NotNegative = 0.1
    """Decoupled weight decay."""

    decay_on: Annotated[
        tuple[Literal["embeddings", "norms", "biases"], ...], Field(strict=False)
    ] = ()
    """Parameters beside the matrices that decay too."""

    options: Mapping[str, Any] = {}
    """Further arguments of the optimizer class, such as `momentum`."""

    clip_norm: Positive | None = 1.0
    """Largest norm of the gradient; null: no clipping."""

    on_nonfinite: Literal["skip", "stop"] = "skip"
    """A step with a non-finite gradient norm: leave the weights as they are and count it, or stop
    the run."""

    on_spike: Literal["stop", "skip", "rewind"] | None = None
    """A step whose loss spikes: stop, skip the update, or go back to a checkpoint and leave the
    offending data out; null: go on."""

    spike_sigma: Positive = 6.0
    """A spike is a loss this many standard deviations above the mean of the last `spike_window`
    steps."""

    spike_window: PositiveCount = 128
    """Steps that the statistics for `on_spike` cover."""


class LossConfig(Section):
    """The cross-entropy of the next token."""

    z_loss: NotNegative = 0.0
    """Weight of the squared log-partition term."""

    chunk: Count = 0
    """Tokens whose logits exist at once, to save memory with large vocabularies; 0: all of a
    micro-batch. Free to change at a resume."""


class ScheduleConfig(Section):
    """The learning rate over the run, a function of the step alone."""

    kind: Literal["cosine", "wsd", "linear", "inverse_sqrt", "constant"] = "cosine"
    """Form after the warm-up. `wsd`: constant, then a linear decay at the end."""

    warmup: StepsTokensOrFraction = TrainingDuration(0.01, "fraction")
    """Linear warm-up: steps (`100`), a fraction of the run (`0.01`, `1%`) or tokens (`"1B
    tokens"`)."""

    decay: StepsTokensOrFraction | None = None
    """Length of the decay, written like `warmup`. Needed by `wsd` (the last part of the run);
    `cosine` and `linear`: from the warm-up on, null: to the end of the run."""

    min_lr: NotNegative = 0.0
    """Learning rate that the decay ends at."""


class EvaluationConfig(Section):
    """Loss on the validation streams."""

    every: PositiveCount | None = 1000
    """Steps between evaluations; null: only as `at_start` and `at_end` say."""

    batches: PositiveCount | None = None
    """Global batches of each validation set, always the same ones; null: the whole set."""

    at_start: bool = False
    """Evaluate before the first step."""

    at_end: bool = True
    """Evaluate after the last step."""


class CheckpointConfig(Section):
    """Saves, and how many are kept. The end of a run is always saved."""

    every: PositiveCount | None = 1000
    """Steps between saves; null: only as `every_time` says."""

    every_time: Seconds | None = None
    """Time between saves."""

    keep_last: PositiveCount = 3
    """Newest checkpoints that are kept."""

    keep_every: PositiveCount | None = None
    """Also keep each checkpoint whose step is a multiple of this."""

    keep_best: bool = False
    """Also keep the checkpoint with the lowest validation loss."""

    asynchronous: bool = True
    """Write, hash and upload in the background while training goes on."""

    on_failure: Literal["stop", "continue"] = "stop"
    """When a save fails in the background: stop at the next save, or warn and go on."""

    staging: LocalPath | None = None
    """Local directory that checkpoints are written to before they are published; null: inside a
    local run directory, else `stream-pretrain` in the user's cache directory."""

    verify: Literal["hashes", "sizes"] = "hashes"
    """What is compared with the receipt before a checkpoint is loaded."""


class LoggingConfig(Section):
    """What is written down, beside `metrics.jsonl`, which is always written."""

    every: PositiveCount = 10
    """Steps between looks at the device's numbers and lines on the console. `metrics.jsonl` and
    `loggers` get every step all the same."""

    loggers: Annotated[
        tuple[Literal["tensorboard", "csv", "wandb", "mlflow"], ...], Field(strict=False)
    ] = ()
    """Further loggers, each continued as the same run at a resume. All but `csv` need the extra of
    that name."""

    project: str | None = None
    """Project (W&B) or experiment (MLflow)."""


class ComputeConfig(Section):
    """Devices, and how the work is spread over them. Free to change at a resume."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of device; `auto`: the best one there is."""

    devices: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """Devices per node; `auto`: all of them, and one process on a CPU."""

    nodes: PositiveCount = 1
    """Machines. More than one needs torchrun or SLURM."""

    strategy: Literal["auto", "ddp", "fsdp2", "hsdp"] = "auto"
    """`ddp`: a whole copy on each device; `fsdp2`: sharded over all; `hsdp`: sharded within a
    group, copied across groups; `auto`: one device or `ddp`."""

    shard_group: PositiveCount | None = None
    """Ranks that share one copy of the model under `hsdp`; null: those of a node."""

    precision: Precision = "32-true"
    """`32-true`, `bf16-mixed`, `16-mixed` (on a GPU, without sharding), or `bf16-true`, which keeps
    weights and optimizer state in bfloat16 too and so cannot be taken up or left within a run."""

    compile: bool = False
    """Compile each block with `torch.compile`."""

    activation_checkpointing: bool = False
    """Recompute each block's activations in the backward pass, to save memory."""

    deterministic: bool = False
    """Only deterministic kernels: bit-identical weights after a resume on a GPU too, slower."""

    threads: PositiveCount | None = None
    """Threads of a CPU process; null: as torch chooses. Sums may differ in the last bits with
    another number."""

    peak_flops: Positive | None = None
    """The device's dense peak in FLOP/s at this precision, for MFU; null: from a table, else MFU is
    left out."""


class Config(Settings):
    """The whole configuration of a run."""

    run: RunConfig
    model: ModelConfig
    data: DataConfig
    batch: BatchConfig
    stop: StopConfig
    optimizer: OptimizerConfig
    loss: LossConfig = LossConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    compute: ComputeConfig = ComputeConfig()
    storage: StorageConfig = StorageConfig()

    checks: ClassVar[tuple[Check, ...]] = CHECKS

    def storage_of(self, stream: StreamConfig) -> StorageConfig:
        """The `storage` section with this stream's overrides."""
        return self.storage.overridden_by(stream.storage)
