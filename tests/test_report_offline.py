"""The printed block and the result file of throughput and latency."""

import json
from pathlib import Path

import offlines
import pytest
from dyno.facts.finding import Finding
from dyno.facts.offline import Speculation
from dyno.facts.spread import Spread
from dyno.facts.summary import Result
from dyno.facts.telemetry import HostTelemetry, TelemetrySummary
from dyno.report import offline_json
from dyno.report.offline import block

CAPTURES = Path(__file__).parent / "captures"
