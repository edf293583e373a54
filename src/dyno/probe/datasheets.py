"""Peaks of accelerators by their makers' data sheets.

Figures are of one device as the driver counts it, at the clock that its maker calculates with (cards may go some per
cent higher) and without sparsity (makers print twice as much with it). Where a maker gives a range or the name doesn't
say which variant it is, the higher figure counts: a share calculated from it is never too high.
"""

import re

import msgspec

MiB = 1 << 20


class DataSheet(msgspec.Struct, frozen=True):
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
_H20 = "NVIDIA's H20 data sheet, not on a public page"
_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_M1 = "2021/10/introducing-m1-pro-and-m1-max-the-most-powerful-chips-apple-has-ever-built/"
_M2 = "2023/01/apple-unveils-m2-pro-and-m2-max-next-generation-chips-for-next-level-workflows/"
_M3 = "2023/10/apple-unveils-m3-m3-pro-and-m3-max-the-most-advanced-chips-for-a-personal-computer/"
_M4 = "2024/10/apple-introduces-m4-pro-and-m4-max/"


def _tera(
    fp32: float, bf16: float, tf32: float = 0.0, fp8: float = 0.0, **others: float
) -> dict[str, float]:
    """Return operations by precision. By default fp16 is as fast as bf16, and int8 as fp8."""
    wide = {"fp32": fp32, "tf32": tf32, "bf16": bf16, "fp16": bf16}
    rates = wide | {"fp8": fp8, "int8": fp8 or bf16, "fp4": 0.0} | others
    return {precision: rate for precision, rate in rates.items() if rate}


_H100 = _tera(66.9, 989.4, 494.7, 1978.9)
_H100_NVL = _tera(60.0, 835.5, 417.5, 1671.0)
_B300 = _tera(80.0, 2500.0, 1250.0, 5000.0, int8=165.0, fp4=15000.0)
_A100 = _tera(19.5, 312.0, 156.0, int8=624.0)
_PRO_6000 = _tera(126.0, 503.8, 251.9, 1007.6, fp4=2015.2)
_MI300X = _tera(163.4, 1307.4, 653.7, 2614.9)

# The first that is found in the name counts.
ACCELERATORS = (
    DataSheet(r"\bgb300\b", "GB300", 8.0, _B300, 126, _NVIDIA + "gb300-nvl72/"),
    DataSheet(r"\bb300\b", "B300", 8.0, _B300, 126, _NVIDIA + "hgx/"),
    DataSheet(r"\bgb200\b", "GB200", 8.0, _tera(90.0, 2500.0, 1250.0, 5000.0, fp4=10000.0), 126,
              _NVIDIA + "gb200-nvl72/"),
    DataSheet(r"\bb200\b", "B200", 8.0, _tera(80.0, 2250.0, 1125.0, 4500.0, fp4=9000.0), 126, _NVIDIA + "hgx/"),
    DataSheet(r"\bgb10\b", "GB10 (DGX Spark)", 0.273, _tera(31.0, 125.0, 62.5, 250.0, fp4=500.0), 24,
              "https://www.nvidia.com/en-us/products/workstations/dgx-spark/"),
    DataSheet(r"\bgh200\b", "GH200", 4.9, _H100, 60, _NVIDIA + "grace-hopper-superchip/"),
    DataSheet(r"\bh200 nvl", "H200 NVL", 4.8, _H100_NVL, 60, _NVIDIA + "h200/"),
    DataSheet(r"\bh200\b", "H200 SXM", 4.8, _H100, 60, _NVIDIA + "h200/"),
    DataSheet(r"\bh100 nvl", "H100 NVL", 3.938, _H100_NVL, 60, _NVIDIA + "h100/"),
    DataSheet(r"\bh[18]00.*pcie", "H100 PCIe", 2.039, _tera(51.2, 756.5, 378.0, 1513.0), 50, _HOPPER),
    DataSheet(r"\bh[18]00\b", "H100 SXM", 3.352, _H100, 50, _HOPPER),
    DataSheet(r"\bh20-3e\b", "H20-3e", 4.8, _tera(44.0, 148.0, 74.0, 296.0), 60, _H20),
    DataSheet(r"\bh20\b", "H20", 4.0, _tera(44.0, 148.0, 74.0, 296.0), 60, _H20),
    DataSheet(r"\ba[18]00.*80 ?gb", "A100 80 GB", 2.039, _A100, 40, _AMPERE),
    DataSheet(r"\ba100.*40 ?gb", "A100 40 GB", 1.555, _A100, 40, _AMPERE),
    DataSheet(r"\ba[18]00\b", "A100", 2.039, _A100, 40, _AMPERE),
    DataSheet(r"\ba30\b", "A30", 0.933, _tera(10.3, 165.0, 82.0, int8=330.0), 24, _NVIDIA + "products/a30-gpu/"),
    DataSheet(r"\ba10g\b", "A10G", 0.6, _tera(35.0, 70.0, 35.0, int8=140.0), 6,
              "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"),
    DataSheet(r"\ba10\b", "A10", 0.6, _tera(31.2, 125.0, 62.5, int8=250.0), 6, _NVIDIA + "products/a10-gpu/"),
    DataSheet(r"\bl40s\b", "L40S", 0.864, _tera(91.6, 366.0, 183.0, 733.0), 96, _NVIDIA + "l40s/"),
    DataSheet(r"\bl40\b", "L40", 0.864, _tera(90.5, 181.05, 90.5, 362.0), 96, _NVIDIA + "l40/"),
    DataSheet(r"\bl4\b", "L4", 0.3, _tera(30.3, 121.0, 60.0, 242.5), 48, _NVIDIA + "l4/"),
    DataSheet(r"rtx pro 6000.*server", "RTX PRO 6000 Blackwell Server", 1.597, _PRO_6000, 128, _RTX_PRO),
    DataSheet(r"rtx pro 6000", "RTX PRO 6000 Blackwell", 1.792, _PRO_6000, 128, _RTX_PRO),
    DataSheet(r"rtx 6000 ada", "RTX 6000 Ada", 0.96, _tera(91.1, 364.2, 182.1, 728.5), 96, _ADA),
    DataSheet(r"rtx a6000", "RTX A6000", 0.768, _tera(38.7, 154.8, 77.4, int8=309.7), 6, _GA102),
    # GeForce: sums in half precision run at twice the rate of sums in single precision. Tensor cores of Ada and later.
    DataSheet(r"rtx 5090(?!.*(laptop| d\b))", "RTX 5090", 1.792,
              _tera(104.8, 209.5, 104.8, 838.0, fp16=419.0, fp4=1676.0), 96, _RTX_50),
    DataSheet(r"rtx 4090(?!.*(laptop| d\b))", "RTX 4090", 1.008, _tera(82.6, 165.2, 82.6, 660.6, fp16=330.3), 72, _ADA),
    DataSheet(r"rtx 3090(?!.*( ti))", "RTX 3090", 0.936, _tera(35.6, 71.0, 35.6, fp16=142.0, int8=284.0), 6, _GA102),
    DataSheet(r"mi355x", "Instinct MI355X", 8.0, _tera(157.3, 2516.6, fp8=5033.2, fp4=10066.3), 256,
              _INSTINCT + "mi350/mi355x.html", parts=8),
    DataSheet(r"mi350x", "Instinct MI350X", 8.0, _tera(144.2, 2306.9, fp8=4613.7, fp4=9227.5), 256,
              _INSTINCT + "mi350/mi350x.html", parts=8),
    DataSheet(r"mi325x", "Instinct MI325X", 6.0, _MI300X, 256, _INSTINCT + "mi300/mi325x.html", parts=8),
    DataSheet(r"mi300x", "Instinct MI300X", 5.325, _MI300X, 256, _INSTINCT + "mi300/mi300x.html", parts=8),
    DataSheet(r"mi300a", "Instinct MI300A", 5.325, _tera(122.6, 980.6, 490.3, 1961.2), 256,
              _INSTINCT + "mi300/mi300a.html", parts=6),
    # Two dies on a card, and the driver counts each: half of what the sheet says.
    DataSheet(r"mi250x", "Instinct MI250X, one of two dies", 1.6384, _tera(47.9, 191.5), 8,
              _INSTINCT + "mi200/mi250x.html"),
    DataSheet(r"mi250\b", "Instinct MI250, one of two dies", 1.6384, _tera(45.3, 181.05), 8,
              _INSTINCT + "mi200/mi250.html"),
    DataSheet(r"mi210\b", "Instinct MI210", 1.6384, _tera(45.3, 181.0), 8, _INSTINCT + "mi200/mi210.html"),
    DataSheet(r"7900 xtx", "Radeon RX 7900 XTX", 0.96, _tera(61.4, 122.8), 96,
              "https://www.amd.com/en/products/graphics/desktops/radeon/7000-series/amd-radeon-rx-7900xtx.html"),
    # 512 operations × 40 compute units × 2.9 GHz, and LPDDR5X-8000 on 256 bits.
    DataSheet(r"8060s|8050s|strix halo", "Radeon 8060S (Strix Halo)", 0.256, _tera(29.7, 59.4), 32, _STRIX),
)  # fmt: skip


def _apple(pattern: str, terabytes: float, fp32: float, cache: int, page: str) -> DataSheet:
    """Apple publishes the bandwidth. Arithmetic is that of the GPU: cores × 128 × 2 × clock; twice that in half
    precision is more than has been seen."""
    tera = {"fp32": fp32, "fp16": 2 * fp32, "bf16": 2 * fp32, "int8": 2 * fp32}
    source = "https://www.apple.com/newsroom/" + page
    return DataSheet(
        rf"apple {pattern}$", f"Apple {pattern.title()}", terabytes, tera, cache, source
    )


# Processor and GPU share the memory, and the driver names the whole.
APPLE = (
    _apple("m1", 0.0683, 2.6, 8, "2020/11/apple-unleashes-m1/"),
    _apple("m1 pro", 0.2, 5.3, 24, _M1),
    _apple("m1 max", 0.4, 10.6, 48, _M1),
    _apple("m1 ultra", 0.8, 21.2, 96,
           "2022/03/apple-unveils-m1-ultra-the-worlds-most-powerful-chip-for-a-personal-computer/"),
    _apple("m2", 0.1, 3.6, 8, "2022/06/apple-unveils-m2-with-breakthrough-performance-and-capabilities/"),
    _apple("m2 pro", 0.2, 6.8, 24, _M2),
    _apple("m2 max", 0.4, 13.6, 48, _M2),
    _apple("m2 ultra", 0.8, 27.2, 96, "2023/06/apple-introduces-m2-ultra/"),
    _apple("m3", 0.1, 4.1, 8, _M3),
    _apple("m3 pro", 0.15, 7.4, 12, _M3),
    _apple("m3 max", 0.4, 16.4, 48, _M3),
    _apple("m3 ultra", 0.819, 32.8, 96, "2025/03/apple-reveals-m3-ultra-taking-apple-silicon-to-a-new-extreme/"),
    _apple("m4", 0.12, 4.6, 8, "2024/05/apple-introduces-m4-chip/"),
    _apple("m4 pro", 0.273, 9.2, 24, _M4),
    _apple("m4 max", 0.546, 18.4, 48, _M4),
)  # fmt: skip


def of_name(name: str) -> DataSheet | None:
    """Find a data sheet by a name as people write it: 'Mi300x', 'RTX 4090'."""
    return of_accelerator(name) or of_apple(name)


def of_accelerator(name: str) -> DataSheet | None:
    return _first(ACCELERATORS, name)


def of_apple(cpu: str) -> DataSheet | None:
    return _first(APPLE, cpu)


def _first(sheets: tuple[DataSheet, ...], name: str) -> DataSheet | None:
    plain = re.sub(r"[-_]+", " ", name.lower()).strip()  # A100-SXM4-80GB
    return next((sheet for sheet in sheets if re.search(sheet.pattern, plain)), None)
