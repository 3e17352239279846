"""Configuration -> `Job`. The only wiring: every part of a run is made here, in the order in which it must be.

launch -> facts -> plan -> owner -> checkpoint found -> data -> model -> optimizer -> state restored -> observer
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stream_pretrain.checkpoint.lease import Lease
from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import Config
from stream_pretrain.data.fingerprint import fingerprint
from stream_pretrain.data.holdout import Holdout
from stream_pretrain.data.identity import check_world, library_version
from stream_pretrain.data.position import EpochClock
from stream_pretrain.data.shards import open_dataset
from stream_pretrain.data.stream import EpochStream, LoaderSettings
from stream_pretrain.model.build import build_model, materialise, model_config_yaml, model_facts
from stream_pretrain.optim.build import build_optimizer
from stream_pretrain.optim.schedule import Schedule
from stream_pretrain.plan import Plan, plan
from stream_pretrain.runtime.control import Control
from stream_pretrain.runtime.launch import launch, requested_world
from stream_pretrain.runtime.stop import Deadline, SignalFlag
from stream_pretrain.schema import ModelFacts, World
from stream_pretrain.train.gather import Sources, gather
from stream_pretrain.train.job import Job
from stream_pretrain.train.step import Updater

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from torch import nn
    from torch.optim import Optimizer

    from stream_pretrain.storage.store import Store
