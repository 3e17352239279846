"""Define every key of the configuration of `fit`, `plan` and `selftest`.

The text under a key is its documentation in `--help` and `configs/README.md`. A key without a
default must be given. The meaning of `null` is documented wherever it is allowed. Numbers that are
derived from the configuration are in `plan`.
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

OnChange = Literal["refuse", "accept"]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class RunConfig(Section):
    """The run directory, and how the run resumes."""

    dir: Location
    """Run directory for configuration, checkpoints and metrics: a local path or a bucket URL."""

    name: str | None = None
    """Name in logs and reports; null: the last part of `dir`."""

    seed: Count = 1234
    """Seed of the initial weights and, unless `data.shuffle.seed` is set, of the order of the
    data."""

    resume: Literal["auto", "never"] | Annotated[int, Field(ge=0)] = "auto"
    """`auto`: resume from the newest complete checkpoint, else start at step 0; `never`: refuse a
    run directory that is not empty; a number: resume from the checkpoint of exactly that step."""

    on_data_change: OnChange = "refuse"
    """What to do when the data fingerprint differs from that of the checkpoint: `refuse` to start,
    or `accept` it and record a new phase."""

    on_config_change: OnChange = "refuse"
    """What to do when optimizer settings or the schedule differ from those of the checkpoint:
    `refuse` to start, or `accept` the new ones."""

    @property
    def label(self) -> str:
        """Return `name`, or the last part of `dir`."""
        return self.name or PurePosixPath(self.dir.rstrip("/")).name or "run"


class StorageConfig(Section):
    """Access to buckets. Credentials come from the environment, a profile or the machine's role,
    never from the configuration."""

    endpoint_url: Endpoint | None = None
    """URL of an S3-compatible service (R2, MinIO, OCI); null: `AWS_ENDPOINT_URL`, else
    `S3_ENDPOINT_URL`, else AWS."""

    region: str | None = None
    """Region of the bucket; null: that of the environment or profile."""

    profile: str | None = None
    """Profile in the AWS configuration files. It needs the extra `aws`."""

    anonymous: bool = False
    """Send unsigned requests, for public buckets."""

    requester_pays: bool = False
    """Pay for the requests to a requester-pays bucket."""

    retries: PositiveCount = 8
    """Attempts for each request, with exponential backoff between them."""

    timeout: Seconds = 30.0
    """Time without an answer after which a request fails."""

    deadline: Seconds = 600.0
    """Time after which the transfer of a file fails, all attempts together."""

    def overridden_by(self, other: StorageConfig | None) -> StorageConfig:
        """Return these settings with the keys that `other` sets explicitly."""
        given = {name: getattr(other, name) for name in other.model_fields_set} if other else {}
        return self.model_copy(update=given)


class ModelConfig(Section):
    """The architecture. At least one of `name`, `config` and `init_from` must be given."""

    name: str | None = None
    """Any LitGPT config name, such as `pythia-160m`, or `module:factory` for a model of your own,
    whose factory reads `config` as it likes."""

    config: Mapping[str, Any] | None = None
    """LitGPT `Config` fields. With `name` they override the fields of that config, without it they
    are the whole config."""

    init_from: LocalPath | None = None
    """LitGPT or Hugging Face checkpoint directory with the initial weights (continued
    pretraining)."""

    tie_embeddings: bool | None = None
    """Share the weights of the input and output embeddings; null: as the architecture does."""

    document_mask: bool = False
    """Separate the documents within a sample: tokens attend only within their document, and
    positions restart with each document."""


class StreamConfig(Section):
    """One stream of samples: a dataset with `dataset.json`, or plain MDS shards with only
    `index.json`."""

    remote: Location | None = None
    """URL or path that shards are downloaded from."""

    local: LocalPath | None = None
    """With `remote`: its cache directory; without: the directory of the data itself."""

    split: str | None = None
    """Split of a dataset; null: `train` or `validation`, as the key that lists the stream. Not for
    streams without `dataset.json`."""

    name: str | None = None
    """Unique name in metrics; null: the last part of the path."""

    weight: Positive | None = None
    """Share of the samples, relative to the weights of the other streams. Either all streams have a
    weight, or none."""

    repeat: Positive | None = None
    """Number of times that the stream is read in an epoch; null: once."""

    storage: StorageConfig | None = None
    """Overrides of the `storage` section for this stream."""

    @property
    def location(self) -> str:
        """Return the URL or path of the data itself."""
        return self.remote or self.local or ""

    @property
    def label(self) -> str:
        """Return `name`, or the last part of the location."""
        return self.name or PurePosixPath(self.location.rstrip("/")).name or "stream"


class ShuffleConfig(Section):
    """The order of samples within an epoch. All keys are part of the data fingerprint."""

    algo: Literal["py1br", "py1e", "py1s", "py2s", "naive", "none"] = "py1e"
    """Shuffle algorithm of MosaicML Streaming; `none`: in the order of the shards. `py1e` mixes
    best for the shards that it needs at a time, `py1s` and `py2s` need the fewest."""

    block_size: PositiveCount | None = None
    """Samples that `py1br` and `py1e` shuffle together in each canonical node; null: 4194304
    divided by the canonical nodes, at least four shards. A larger block mixes better and needs more
    shards at a time."""

    seed: Count | None = None
    """Seed of the shuffle; null: `run.seed`."""

    canonical_nodes: PositiveCount | None = None
    """Parts that an epoch is divided into, whatever the number of machines; null: the largest
    divisor of the global batch up to 64."""

    sampling_granularity: PositiveCount = 1
    """Samples that are chosen together when an epoch draws only a part of a shard. A higher value
    starts an epoch faster."""


class CacheConfig(Section):
    """The cache of downloaded shards."""

    dir: LocalPath | None = None
    """Directory for the shards of remote streams without `local`, and for the decompressed shards
    of local datasets; null: `stream-pretrain` in the user's cache directory."""

    limit: ByteSize | None = None
    """Size of the cache above which shards that are not needed now are deleted; null: keep all. Not
    allowed with a stream that has no `remote`."""


class DataConfig(Section):
    """The data to train and evaluate on."""

    train: Annotated[tuple[StreamConfig, ...], Field(min_length=1, strict=False)]
    """Streams to train on; on the command line a JSON list."""

    validation: Annotated[tuple[StreamConfig, ...], Field(strict=False)] = ()
    """Streams to evaluate on, each separately; empty: the validation splits of the training
    datasets."""

    seq_len: PositiveCount | None = None
    """Inputs per sample (a row holds `seq_len + 1` ids); only for streams without
    `dataset.json`."""

    tokenizer: LocalPath | None = None
    """Tokenizer directory or `tokenizer.json`; only for streams without `dataset.json`."""

    truncate: bool = False
    """Cut rows that are longer than `seq_len + 1` instead of refusing them."""

    batching: Literal["random", "stratified"] = "random"
    """How streams are mixed: `random`, or `stratified`, where every global batch has the same share
    of each stream. Without weights, a stratified epoch ends when the first stream has been read."""

    shuffle: ShuffleConfig = ShuffleConfig()
    """The order of samples."""

    cache: CacheConfig = CacheConfig()
    """The cache of shards on this machine."""

    workers: Count = 2
    """DataLoader worker processes per rank; 0: the training process reads the data itself."""

    verify: Literal["arrival", "full", "sizes"] = "arrival"
    """`arrival`: check the hash of a shard when it is downloaded; `full`: also check cached shards
    at the start; `sizes`: check no hashes."""

    warn_after: Seconds = 30.0
    """Time after which a wait for data is reported, with the shard that is waited for."""


class BatchConfig(Section):
    """Sizes of batches in samples."""

    global_size: PositiveCount
    """Samples per optimizer step, over all ranks and micro-batches. It cannot change during a
    run."""

    micro_size: PositiveCount | None = None
    """Samples per rank and forward pass; null: a rank's whole share of the global batch. It may
    change when a run resumes."""


class StopConfig(Section):
    """The end of the run. At least one limit must be given; the first that is reached counts."""

    max_tokens: PositiveCount | None = None
    """Target tokens (`batch.global_size x seq_len` per step), rounded up to whole steps."""

    max_steps: PositiveCount | None = None
    """Optimizer steps."""

    max_epochs: PositiveCount | None = None
    """Passes over the data."""

    max_time: Seconds | None = None
    """Training time, summed over all starts of the run."""


class OptimizerConfig(Section):
    """The optimizer."""

    name: str = "adamw"
    """`adamw`, `muon` (hidden matrices; AdamW for the rest), a class of `torch.optim` by path
    (`torch.optim.Adafactor`), or `module:name` for a class or function of your own."""

    lr: Positive
    """Peak learning rate."""

    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.95)
    """Decay rates of the moments of AdamW."""

    eps: Positive = 1e-8
    """Term of AdamW for numerical stability."""

    weight_decay: NotNegative = 0.1
    """Decoupled weight decay."""

    decay_on: Annotated[
        tuple[Literal["embeddings", "norms", "biases"], ...], Field(strict=False)
    ] = ()
    """Parameters that have weight decay in addition to the matrices."""

    options: Mapping[str, Any] = {}
    """Further arguments of the optimizer class, such as `momentum`."""

    clip_norm: Positive | None = 1.0
    """Maximum norm of the gradient; null: no clipping."""

    on_nonfinite: Literal["skip", "stop"] = "skip"
    """What to do at a step with a non-finite gradient norm: `skip` the update and count the step,
    or `stop` the run."""

    on_spike: Literal["stop", "skip", "rewind"] | None = None
    """What to do at a step whose loss spikes: `stop` the run, `skip` the update, or `rewind` to a
    checkpoint and skip the data of the spike; null: nothing."""

    spike_sigma: Positive = 6.0
    """A spike is a loss this many standard deviations above the mean of the last `spike_window`
    steps."""

    spike_window: PositiveCount = 128
    """Steps that the statistics for `on_spike` are computed over."""


class LossConfig(Section):
    """The loss: cross-entropy of the next token."""

    z_loss: NotNegative = 0.0
    """Weight of the squared log-partition term."""

    chunk: Count = 0
    """Tokens whose logits are computed at a time, to save memory with large vocabularies; 0: all of
    a micro-batch. It may change when a run resumes."""


class ScheduleConfig(Section):
    """The learning rate over the run, a function of the step alone."""

    kind: Literal["cosine", "wsd", "linear", "inverse_sqrt", "constant"] = "cosine"
    """Shape after the warm-up. `wsd`: constant, then a linear decay at the end."""

    warmup: StepsTokensOrFraction = TrainingDuration(0.01, "fraction")
    """Linear warm-up: steps (`100`), a fraction of the run (`0.01`, `1%`) or tokens (`"1B
    tokens"`)."""

    decay: StepsTokensOrFraction | None = None
    """Length of the decay, written like `warmup`. With `wsd` it is required and is the last part of
    the run; with `cosine` and `linear` it follows the warm-up, and null means: to the end of the
    run."""

    min_lr: NotNegative = 0.0
    """Learning rate at the end of the decay."""


class EvaluationConfig(Section):
    """Loss on the validation streams."""

    every: PositiveCount | None = 1000
    """Steps between evaluations; null: only `at_start` and `at_end`."""

    batches: PositiveCount | None = None
    """Global batches to evaluate of each validation set, always the same ones; null: the whole
    set."""

    at_start: bool = False
    """Evaluate before the first step."""

    at_end: bool = True
    """Evaluate after the last step."""


class CheckpointConfig(Section):
    """How often checkpoints are saved, and which are kept. The end of a run is always saved."""

    every: PositiveCount | None = 1000
    """Steps between saves; null: only `every_time` counts."""

    every_time: Seconds | None = None
    """Time between saves."""

    keep_last: PositiveCount = 3
    """Number of newest checkpoints to keep."""

    keep_every: PositiveCount | None = None
    """Also keep each checkpoint whose step is a multiple of this."""

    keep_best: bool = False
    """Also keep the checkpoint with the lowest validation loss."""

    asynchronous: bool = True
    """Write, hash and upload checkpoints in the background while training continues."""

    on_failure: Literal["stop", "continue"] = "stop"
    """What to do when a save fails in the background: `stop` at the next save, or `continue` with a
    warning."""

    staging: LocalPath | None = None
    """Local directory that checkpoints are written to before they are published; null: inside a
    local run directory, else `stream-pretrain` in the user's cache directory."""

    verify: Literal["hashes", "sizes"] = "hashes"
    """What is compared with the receipt of a checkpoint before it is loaded."""


class LoggingConfig(Section):
    """Loggers and the console. `metrics.jsonl` is always written."""

    every: PositiveCount = 10
    """Steps between reads of the device's numbers and lines on the console. `metrics.jsonl` and
    `loggers` receive every step in any case."""

    loggers: Annotated[
        tuple[Literal["tensorboard", "csv", "wandb", "mlflow"], ...], Field(strict=False)
    ] = ()
    """Additional loggers. Each continues the same run after a resume. All but `csv` need the extra
    of that name."""

    project: str | None = None
    """Project (W&B) or experiment (MLflow)."""


class ComputeConfig(Section):
    """Devices and the distribution of work. All keys may change when a run resumes, except where
    stated."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of device; `auto`: `cuda` if there is a GPU."""

    devices: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """Devices per machine; `auto`: all GPUs, or one process on a CPU."""

    nodes: PositiveCount = 1
    """Number of machines. More than one needs torchrun or SLURM."""

    strategy: Literal["auto", "ddp", "fsdp2", "hsdp"] = "auto"
    """`ddp`: a whole copy of the model on each device; `fsdp2`: sharded over all devices; `hsdp`:
    sharded within a group and replicated across groups; `auto`: `ddp` with more than one device."""

    shard_group: PositiveCount | None = None
    """Ranks that share one copy of the model with `hsdp`; null: those of a machine."""

    precision: Precision = "32-true"
    """`32-true`, `bf16-mixed`, `16-mixed` (on a GPU, without sharding) or `bf16-true`. With
    `bf16-true` weights and optimizer state are bfloat16 too, so that a run cannot change to it or
    from it."""

    compile: bool = False
    """Compile each block with `torch.compile`."""

    activation_checkpointing: bool = False
    """Recompute the activations of each block in the backward pass, to save memory."""

    deterministic: bool = False
    """Use only deterministic kernels. It is slower, and weights after a resume are bit-identical on
    a GPU too."""

    threads: PositiveCount | None = None
    """Threads of a CPU process; null: the default of torch. Another number of threads may change
    sums in the last bits."""

    peak_flops: Positive | None = None
    """Dense peak FLOP/s of the device at this precision, for MFU; null: from a table, and without
    MFU for a device that the table lacks."""


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
        """Return the `storage` section with the overrides of this stream."""
        return self.storage.overridden_by(stream.storage)
