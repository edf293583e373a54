"""Queries with documents to rank, as vLLM's random-rerank."""

from typing import Annotated

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits

RandomBatchSize = Annotated[
    int,
    Option(
        "--random-batch-size",
        "N",
        "random: texts of a request for embeddings; random-rerank: documents of a request",
        least=1,
        most=100_000,
    ),
]


class RandomRerankSpec(CommonSpec, frozen=True):
    random_batch_size: RandomBatchSize = 1
    reranker: Annotated[
        bool,
        Option(
            "--no-reranker",
            help="random-rerank: query and documents each have --random-input-len tokens; else a pair of them has "
            "(study: reranker = false)",
        ),
    ] = True


RANDOM_RERANK = Dataset(
    name="random-rerank",
    about="a random query with random documents; needs `--backend vllm-rerank`",
    make="synthetic:random_rerank",
    traits=DatasetTraits(endless=True, scores=True),
    spec=RandomRerankSpec,
    needs=("input_len",),
)
