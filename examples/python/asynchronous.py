"""Measure under asyncio: the load runs in a process of its own, and the loop stays free."""

import asyncio

import dyno


async def main() -> None:
    task = asyncio.create_task(
        dyno.aio.serve(
            engine="fake", max_concurrency=2, num_prompts=20, input_len=16, output_len=8
        )
    )
    while not task.done():
        print("measuring …")
        await asyncio.sleep(1)
    run = await task
    print(run.verdict, run["median_ttft_ms"])


if __name__ == "__main__":
    asyncio.run(main())
