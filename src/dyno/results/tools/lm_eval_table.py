"""lm-eval's Markdown table: a metric on each line; a task's name stands on its first line only."""

import re
from typing import Literal

from dyno.facts.imported import Cell, Figure, Row, Setting, Table
from dyno.results.printed import printed
from dyno.secrets import shown


def rows(table: Table, index: int, file: str, form: Literal["table", "csv"]) -> list[Row] | None:
    titles = [title.strip().lower() for title in table.header]
    task_column = next((i for i, title in enumerate(titles) if title in ("tasks", "task", "groups")), None)
    if task_column is None or "metric" not in titles or "value" not in titles:
        return None
    value_column = titles.index("value")
    task, group = "", titles[task_column] == "groups"
    found = []
    carried: dict[str, Cell] = {}
    for cells, line in zip(table.rows, table.lines, strict=False):
        if len(cells) <= max(value_column, task_column):
            continue
        name = cells[task_column].text.strip()
        if name:
            task, carried = re.sub(r"^[\s-]+", "", name), {}
        told = {title: cell for title, cell in zip(titles, cells, strict=False) if title and cell.text.strip()}
        # Version, filter and n-shot are blank too where they stay the same.
        carried |= {key: told[key] for key in ("version", "filter", "n-shot") if key in told}
        score = printed(cells[value_column].text)
        if score is None:
            continue
        figures = {"score": Figure(score.value, line, score.half, bold=cells[value_column].bold)}
        stderr = printed(told["stderr"].text) if "stderr" in told else None
        if stderr is not None:
            figures["stderr"] = Figure(stderr.value, line, stderr.half)
        found.append(
            Row(
                kind="quality",
                tool="lm-eval",
                form=form,
                file=file,
                line=line,
                end=line,
                figures=figures,
                settings=_settings(task, told, carried, group, line),
                label=shown("task", task),
                section=table.section,
                table=index,
            )
        )
    return found


def _settings(task: str, told: dict[str, Cell], carried: dict[str, Cell], group: bool, line: int) -> dict[str, Setting]:
    out = {"task": Setting(shown("task", task), line, "column")} if task else {}
    if group:
        out["group"] = Setting(True, line, "column")
    if "metric" in told:
        out["metric"] = Setting(shown("metric", told["metric"].text.strip()), line, "column")
    for key, name in (("filter", "filter"), ("version", "task_version"), ("n-shot", "n_shot")):
        if key in carried:
            text = carried[key].text.strip()
            number = printed(text)
            whole = number is not None and not number.unit and number.value == int(number.value)
            out[name] = Setting(int(number.value) if number and whole else shown(name, text), line, "column")
    return out
