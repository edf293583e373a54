"""A dataset's file, read whole."""

from pathlib import Path

from dyno import files
from dyno.errors import WorkloadError


def read(path: str) -> bytes:
    try:
        data = files.read(Path(path).expanduser(), files.DATA, pipes=True)
    except FileNotFoundError:
        raise WorkloadError(f"There is no file {path}. Check --dataset-path.") from None
    except IsADirectoryError:
        raise WorkloadError(f"{path} is a folder. Give the file in it with --dataset-path.") from None
    except OSError as e:
        raise WorkloadError(f"{path} can't be read: {e.strerror}. Check --dataset-path.") from None
    if not data or data.isspace():
        raise WorkloadError(f"{path} is empty. Was its download cut off?")
    return data.removeprefix(b"\xef\xbb\xbf")  # the mark that some Windows editors put first
