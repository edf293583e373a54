"""Questions of the built-in tasks, which `dyno eval` scores; here they are timed."""

from dyno.workload.dataset import Dataset

TASKS = Dataset(
    name="tasks",
    about="questions of the built-in tasks, answered to the end token; use `--backend openai-chat`",
    make="synthetic:questions",
    offline=True,
    answer_tokens=10,  # 8 in the mean
)
