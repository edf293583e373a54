"""What accelerators can do at most, by their makers' data sheets.

Figures are of one device as the driver counts it, at the clock that its maker reckons with (cards may go some per cent
higher) and without sparsity (makers print twice as much with it). Where a maker tells a range or the name doesn't tell
which variant it is, the higher figure stands: a share that is reckoned from it is never too high.
"""

import re

import msgspec

from dyno.facts.rig import Accelerator

MiB = 1 << 20


class Sheet(msgspec.Struct, frozen=True):
    pattern: str  # in the device's name, small letters
    name: str
    terabytes: float  # of memory bandwidth, each second
    tera: dict[str, float]  # operations/s by precision
    cache: int  # MiB of the last level
    source: str
    parts: int = 1  # that a whole device can be cut into (CPX)


_HOPPER = "https://resources.nvidia.com/en-us-hopper-architecture/nvidia-h100-tensor-c"
_AMPERE = "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_RTX_50 = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_RTX_PRO = "https://www.nvidia.com/en-us/products/workstations/professional-desktop-gpus/rtx-pro-6000/"
_INSTINCT = "https://www.amd.com/en/products/accelerators/instinct/"
_STRIX = "https://www.amd.com/en/products/processors/laptop/ryzen/ai-300-series/amd-ryzen-ai-max-plus-395.html"
_APPLE = "https://www.apple.com/newsroom/"

_H100 = {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9, "int8": 1978.9}
_H100_NVL = {"fp32": 60.0, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5, "fp8": 1671.0, "int8": 1671.0}
_B200 = {"fp32": 80.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0, "int8": 4500.0, "fp4": 9000.0}
_GB200 = {"fp32": 90.0, "tf32": 1250.0, "bf16": 2500.0, "fp16": 2500.0, "fp8": 5000.0, "int8": 5000.0, "fp4": 10000.0}
_B300 = {"fp32": 80.0, "tf32": 1250.0, "bf16": 2500.0, "fp16": 2500.0, "fp8": 5000.0, "int8": 165.0, "fp4": 15000.0}
_A100 = {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0, "int8": 624.0}
# GeForce: sums in half precision run at twice the rate of sums in single precision. Tensor cores of Ada and later.
_4090 = {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 330.3, "fp8": 660.6, "int8": 660.6}
_5090 = {"fp32": 104.8, "tf32": 104.8, "bf16": 209.5, "fp16": 419.0, "fp8": 838.0, "int8": 838.0, "fp4": 1676.0}
_PRO_6000 = {"fp32": 126.0, "tf32": 251.9, "bf16": 503.8, "fp16": 503.8, "fp8": 1007.6, "int8": 1007.6, "fp4": 2015.2}
_MI300X = {"fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9, "int8": 2614.9}
_MI350X = {"fp32": 144.2, "bf16": 2306.9, "fp16": 2306.9, "fp8": 4613.7, "int8": 4613.7, "fp4": 9227.5}
_MI355X = {"fp32": 157.3, "bf16": 2516.6, "fp16": 2516.6, "fp8": 5033.2, "int8": 5033.2, "fp4": 10066.3}

# The first that is found in the name counts.
ACCELERATORS = (
    Sheet(r"\bgb300\b", "GB300", 8.0, _B300, 126, "https://www.nvidia.com/en-us/data-center/gb300-nvl72/"),
    Sheet(r"\bb300\b", "B300", 8.0, _B300, 126, "https://www.nvidia.com/en-us/data-center/hgx/"),
    Sheet(r"\bgb200\b", "GB200", 8.0, _GB200, 126, "https://www.nvidia.com/en-us/data-center/gb200-nvl72/"),
    Sheet(r"\bb200\b", "B200", 8.0, _B200, 126, "https://www.nvidia.com/en-us/data-center/hgx/"),
    Sheet(
        r"\bgb10\b", "GB10 (DGX Spark)", 0.273,
        {"fp32": 31.0, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0, "fp8": 250.0, "int8": 250.0, "fp4": 500.0}, 24,
        "https://www.nvidia.com/en-us/products/workstations/dgx-spark/",
    ),
    Sheet(r"\bgh200\b", "GH200", 4.9, _H100, 60, "https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/"),
    Sheet(r"\bh200 nvl", "H200 NVL", 4.8, _H100_NVL, 60, "https://www.nvidia.com/en-us/data-center/h200/"),
    Sheet(r"\bh200\b", "H200 SXM", 4.8, _H100, 60, "https://www.nvidia.com/en-us/data-center/h200/"),
    Sheet(r"\bh100 nvl", "H100 NVL", 3.938, _H100_NVL, 60, "https://www.nvidia.com/en-us/data-center/h100/"),
    Sheet(r"\bh[18]00.*pcie", "H100 PCIe", 2.039,
          {"fp32": 51.2, "tf32": 378.0, "bf16": 756.5, "fp16": 756.5, "fp8": 1513.0, "int8": 1513.0}, 50, _HOPPER),
    Sheet(r"\bh[18]00\b", "H100 SXM", 3.352, _H100, 50, _HOPPER),
    Sheet(r"\bh20-3e\b", "H20-3e", 4.8,
          {"fp32": 44.0, "tf32": 74.0, "bf16": 148.0, "fp16": 148.0, "fp8": 296.0, "int8": 296.0}, 60,
          "NVIDIA's H20 data sheet, not on a public page"),
    Sheet(r"\bh20\b", "H20", 4.0,
          {"fp32": 44.0, "tf32": 74.0, "bf16": 148.0, "fp16": 148.0, "fp8": 296.0, "int8": 296.0}, 60,
          "NVIDIA's H20 data sheet, not on a public page"),
    Sheet(r"\ba[18]00.*80 ?gb", "A100 80 GB", 2.039, _A100, 40, _AMPERE),
    Sheet(r"\ba100.*40 ?gb", "A100 40 GB", 1.555, _A100, 40, _AMPERE),
    Sheet(r"\ba[18]00\b", "A100", 2.039, _A100, 40, _AMPERE),
    Sheet(r"\ba30\b", "A30", 0.933, {"fp32": 10.3, "tf32": 82.0, "bf16": 165.0, "fp16": 165.0, "int8": 330.0}, 24,
          "https://www.nvidia.com/en-us/data-center/products/a30-gpu/"),
    Sheet(r"\ba10g\b", "A10G", 0.6, {"fp32": 35.0, "tf32": 35.0, "bf16": 70.0, "fp16": 70.0, "int8": 140.0}, 6,
          "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"),
    Sheet(r"\ba10\b", "A10", 0.6, {"fp32": 31.2, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0, "int8": 250.0}, 6,
          "https://www.nvidia.com/en-us/data-center/products/a10-gpu/"),
    Sheet(r"\bl40s\b", "L40S", 0.864,
          {"fp32": 91.6, "tf32": 183.0, "bf16": 366.0, "fp16": 366.0, "fp8": 733.0, "int8": 733.0}, 96,
          "https://www.nvidia.com/en-us/data-center/l40s/"),
    Sheet(r"\bl40\b", "L40", 0.864,
          {"fp32": 90.5, "tf32": 90.5, "bf16": 181.05, "fp16": 181.05, "fp8": 362.0, "int8": 362.0}, 96,
          "https://www.nvidia.com/en-us/data-center/l40/"),
    Sheet(r"\bl4\b", "L4", 0.3,
          {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0, "fp8": 242.5, "int8": 242.5}, 48,
          "https://www.nvidia.com/en-us/data-center/l4/"),
    Sheet(r"rtx pro 6000.*server", "RTX PRO 6000 Blackwell Server", 1.597, _PRO_6000, 128, _RTX_PRO),
    Sheet(r"rtx pro 6000", "RTX PRO 6000 Blackwell", 1.792, _PRO_6000, 128, _RTX_PRO),
    Sheet(r"rtx 6000 ada", "RTX 6000 Ada", 0.96,
          {"fp32": 91.1, "tf32": 182.1, "bf16": 364.2, "fp16": 364.2, "fp8": 728.5, "int8": 728.5}, 96, _ADA),
    Sheet(r"rtx a6000", "RTX A6000", 0.768,
          {"fp32": 38.7, "tf32": 77.4, "bf16": 154.8, "fp16": 154.8, "int8": 309.7}, 6, _GA102),
    Sheet(r"rtx 5090(?!.*(laptop| d\b))", "RTX 5090", 1.792, _5090, 96, _RTX_50),
    Sheet(r"rtx 4090(?!.*(laptop| d\b))", "RTX 4090", 1.008, _4090, 72, _ADA),
    Sheet(r"rtx 3090(?!.*( ti))", "RTX 3090", 0.936,
          {"fp32": 35.6, "tf32": 35.6, "bf16": 71.0, "fp16": 142.0, "int8": 284.0}, 6, _GA102),
    Sheet(r"mi355x", "Instinct MI355X", 8.0, _MI355X, 256, _INSTINCT + "mi350/mi355x.html", parts=8),
    Sheet(r"mi350x", "Instinct MI350X", 8.0, _MI350X, 256, _INSTINCT + "mi350/mi350x.html", parts=8),
    Sheet(r"mi325x", "Instinct MI325X", 6.0, _MI300X, 256, _INSTINCT + "mi300/mi325x.html", parts=8),
    Sheet(r"mi300x", "Instinct MI300X", 5.325, _MI300X, 256, _INSTINCT + "mi300/mi300x.html", parts=8),
    Sheet(r"mi300a", "Instinct MI300A", 5.325,
          {"fp32": 122.6, "tf32": 490.3, "bf16": 980.6, "fp16": 980.6, "fp8": 1961.2, "int8": 1961.2}, 256,
          _INSTINCT + "mi300/mi300a.html", parts=6),
    # Two dies on a card, and the driver counts each: half of what the sheet says.
    Sheet(r"mi250x", "Instinct MI250X, one of two dies", 1.6384,
          {"fp32": 47.9, "bf16": 191.5, "fp16": 191.5, "int8": 191.5}, 8, _INSTINCT + "mi200/mi250x.html"),
    Sheet(r"mi250\b", "Instinct MI250, one of two dies", 1.6384,
          {"fp32": 45.3, "bf16": 181.05, "fp16": 181.05, "int8": 181.05}, 8, _INSTINCT + "mi200/mi250.html"),
    Sheet(r"mi210\b", "Instinct MI210", 1.6384, {"fp32": 45.3, "bf16": 181.0, "fp16": 181.0, "int8": 181.0}, 8,
          _INSTINCT + "mi200/mi210.html"),
    Sheet(r"7900 xtx", "Radeon RX 7900 XTX", 0.96, {"fp32": 61.4, "bf16": 122.8, "fp16": 122.8, "int8": 122.8}, 96,
          "https://www.amd.com/en/products/graphics/desktops/radeon/7000-series/amd-radeon-rx-7900xtx.html"),
    # 512 operations × 40 compute units × 2.9 GHz, and LPDDR5X-8000 on 256 bits.
    Sheet(r"8060s|8050s|strix halo", "Radeon 8060S (Strix Halo)", 0.256,
          {"fp32": 29.7, "bf16": 59.4, "fp16": 59.4, "int8": 59.4}, 32, _STRIX),
)  # fmt: skip


def _m(pattern: str, terabytes: float, fp32: float, cache: int, page: str) -> Sheet:
    """Apple tells the bandwidth. Arithmetic is that of the GPU: cores × 128 × 2 × clock; twice that in half precision
    is more than has been seen."""
    tera = {"fp32": fp32, "fp16": 2 * fp32, "bf16": 2 * fp32, "int8": 2 * fp32}
    return Sheet(rf"apple {pattern}$", f"Apple {pattern.title()}", terabytes, tera, cache, _APPLE + page)


# Processor and GPU share the memory, and the driver names the whole.
APPLE = (
    _m("m1", 0.0683, 2.6, 8, "2020/11/apple-unleashes-m1/"),
    _m("m1 pro", 0.2, 5.3, 24, "2021/10/introducing-m1-pro-and-m1-max-the-most-powerful-chips-apple-has-ever-built/"),
    _m("m1 max", 0.4, 10.6, 48, "2021/10/introducing-m1-pro-and-m1-max-the-most-powerful-chips-apple-has-ever-built/"),
    _m("m1 ultra", 0.8, 21.2, 96,
       "2022/03/apple-unveils-m1-ultra-the-worlds-most-powerful-chip-for-a-personal-computer/"),
    _m("m2", 0.1, 3.6, 8, "2022/06/apple-unveils-m2-with-breakthrough-performance-and-capabilities/"),
    _m("m2 pro", 0.2, 6.8, 24,
       "2023/01/apple-unveils-m2-pro-and-m2-max-next-generation-chips-for-next-level-workflows/"),
    _m("m2 max", 0.4, 13.6, 48,
       "2023/01/apple-unveils-m2-pro-and-m2-max-next-generation-chips-for-next-level-workflows/"),
    _m("m2 ultra", 0.8, 27.2, 96, "2023/06/apple-introduces-m2-ultra/"),
    _m("m3", 0.1, 4.1, 8,
       "2023/10/apple-unveils-m3-m3-pro-and-m3-max-the-most-advanced-chips-for-a-personal-computer/"),
    _m("m3 pro", 0.15, 7.4, 12,
       "2023/10/apple-unveils-m3-m3-pro-and-m3-max-the-most-advanced-chips-for-a-personal-computer/"),
    _m("m3 max", 0.4, 16.4, 48,
       "2023/10/apple-unveils-m3-m3-pro-and-m3-max-the-most-advanced-chips-for-a-personal-computer/"),
    _m("m3 ultra", 0.819, 32.8, 96, "2025/03/apple-reveals-m3-ultra-taking-apple-silicon-to-a-new-extreme/"),
    _m("m4", 0.12, 4.6, 8, "2024/05/apple-introduces-m4-chip/"),
    _m("m4 pro", 0.273, 9.2, 24, "2024/10/apple-introduces-m4-pro-and-m4-max/"),
    _m("m4 max", 0.546, 18.4, 48, "2024/10/apple-introduces-m4-pro-and-m4-max/"),
)  # fmt: skip


def of_accelerator(accelerator: Accelerator) -> Sheet | None:
    return _found(ACCELERATORS, accelerator.name)


def of_name(name: str) -> Sheet | None:
    """As people write it: 8xH100 is read elsewhere, 'Mi300x' and 'RTX 4090' here."""
    return _found(ACCELERATORS, name) or _found(APPLE, name)


def of_apple(cpu: str) -> Sheet | None:
    return _found(APPLE, cpu)


def _found(sheets: tuple[Sheet, ...], name: str) -> Sheet | None:
    plain = re.sub(r"[-_]+", " ", name.lower()).strip()  # A100-SXM4-80GB
    return next((sheet for sheet in sheets if re.search(sheet.pattern, plain)), None)
