"""The names of dyno, for type checkers and editors. `__init__.py` loads them when they are used."""

from dyno.api import aio as aio
from dyno.api.columns import (
    ColumnTable as ColumnTable,
)
from dyno.api.measuring import (
    latency as latency,
)
from dyno.api.measuring import (
    micro as micro,
)
from dyno.api.measuring import (
    serve as serve,
)
from dyno.api.measuring import (
    throughput as throughput,
)
from dyno.api.progress import (
    ProgressReport as ProgressReport,
)
from dyno.api.results import (
    AuditedResults as AuditedResults,
)
from dyno.api.results import (
    ComparedRuns as ComparedRuns,
)
from dyno.api.results import (
    ReportPage as ReportPage,
)
from dyno.api.results import (
    audit as audit,
)
from dyno.api.results import (
    compare as compare,
)
from dyno.api.results import (
    load as load,
)
from dyno.api.results import (
    report as report,
)
from dyno.api.results import (
    sql as sql,
)
from dyno.api.runs import (
    MeasuredRun as MeasuredRun,
)
from dyno.api.runs import (
    MeasuredRuns as MeasuredRuns,
)
from dyno.api.searching import (
    FoundLoad as FoundLoad,
)
from dyno.api.searching import (
    TunedSettings as TunedSettings,
)
from dyno.api.searching import (
    find as find,
)
from dyno.api.searching import (
    tune as tune,
)
from dyno.api.studies import (
    PlannedStudy as PlannedStudy,
)
from dyno.api.studies import (
    StudyResult as StudyResult,
)
from dyno.api.studies import (
    study as study,
)
from dyno.errors import (
    DrawError as DrawError,
)
from dyno.errors import (
    DynoError as DynoError,
)
from dyno.errors import (
    EngineError as EngineError,
)
from dyno.errors import (
    HubRefusal as HubRefusal,
)
from dyno.errors import (
    ImportFailed as ImportFailed,
)
from dyno.errors import (
    Interrupted as Interrupted,
)
from dyno.errors import (
    ModelError as ModelError,
)
from dyno.errors import (
    NotFound as NotFound,
)
from dyno.errors import (
    NotSummedUp as NotSummedUp,
)
from dyno.errors import (
    RigError as RigError,
)
from dyno.errors import (
    StoreError as StoreError,
)
from dyno.errors import (
    StudyStopped as StudyStopped,
)
from dyno.errors import (
    TargetError as TargetError,
)
from dyno.errors import (
    Unreachable as Unreachable,
)
from dyno.errors import (
    UsageError as UsageError,
)
from dyno.errors import (
    WorkloadError as WorkloadError,
)

__version__: str
