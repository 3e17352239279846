"""Fixtures for all tests.

Keys for the test server are in the environment from the start: a fork server takes what is there
when it starts.
"""

import os

from run_fixtures import dataset, forked_runs  # noqa: F401
from servers.fixtures import bucket, fault_proxy, s3, s3_server  # noqa: F401
from servers.s3 import KEYS

os.environ.update(KEYS)
