"""Questions of a data set of the Hugging Face Hub."""

from typing import Annotated

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits, LengthFlag

ENDINGS = (".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz", ".csv")
# Of vLLM's, those with images or sounds. They would be fetched for nothing.
OTHER_MEDIA = frozenset(
    (
        "lmms-lab/LLaVA-OneVision-Data",
        "lmarena-ai/VisionArena-Chat",
        "lmarena-ai/vision-arena-bench-v0.1",
        "yale-nlp/MMVU",
        "Lin-Chen/MMStar",
        "openslr/librispeech_asr",
        "facebook/voxpopuli",
        "LIUM/tedlium",
        "edinburghcstr/ami",
        "speechcolab/gigaspeech",
        "kensho/spgispeech",
        "ArtificialAnalysis/Earnings22-Cleaned-AA",
        "D4nt3/esb-datasets-earnings22-validation-tiny-filtered",
    )
)


class HfSpec(CommonSpec, frozen=True):
    hf_name: Annotated[
        str | None,
        Option(
            "--hf-name",
            "OWNER/NAME",
            "dataset of the Hub: to fetch, or which one --dataset-path is (default: none)",
        ),
    ] = None
    hf_subset: Annotated[
        str | None,
        Option(
            "--hf-subset",
            "NAME",
            "subset: its files have it in their path (default: all; of gsm8k: main)",
        ),
    ] = None
    hf_split: Annotated[
        str | None,
        Option(
            "--hf-split",
            "NAME",
            "split: its files have it in their path (default: train; gsm8k, humaneval: test)",
        ),
    ] = None
    blazedit_min_distance: Annotated[
        float,
        Option(
            "--blazedit-min-distance",
            "D",
            "blazedit: least share of the code that an edit changes",
            least=0,
            most=1,
        ),
    ] = 0.0
    blazedit_max_distance: Annotated[
        float,
        Option(
            "--blazedit-max-distance",
            "D",
            "blazedit: largest share of the code that an edit changes",
            least=0,
            most=1,
        ),
    ] = 1.0
    bfcl_categories: Annotated[
        str,
        Option(
            "--bfcl-categories",
            "LIST",
            "bfcl: categories, with commas between; needs --backend openai-chat",
        ),
    ] = "simple,live_simple,multiple"


HF = Dataset(
    name="hf",
    about="questions of a dataset of the Hugging Face Hub, fetched or here: `--dataset-path OWNER/NAME`",
    make="published:hf",
    traits=DatasetTraits(file=True, ends=True, template=True),
    spec=HfSpec,
    file_optional=True,
    folders=True,
    offline=True,
    lengths=(
        LengthFlag(
            "output_len",
            "output-len",
            None,
            "tokens to generate (default: as in the file; 256 where it has none)",
        ),
    ),
    hub_name="hf_name",
    hub_endings=ENDINGS,
    hub_refused=OTHER_MEDIA,
)
