"""Names in a page replaced by others, so that the page can be sent to people outside.

Paths, hosts, users, addresses and models get the same new name wherever they stand, inside stacks
and names of kernels too. PyTorch, its relatives and Python's own library keep their names.
"""

from __future__ import annotations

import contextlib
import getpass
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.report.plain import mapped

if TYPE_CHECKING:
    from stepscope.opening.reader import Run

HOST, USER, PATH, MODEL, PACKAGE, ADDRESS = "host", "user", "path", "model", "package", "address"
KIND_NAMES = {
    HOST: ("host name", "host names"),
    USER: ("user name", "user names"),
    PATH: ("part of a path", "parts of paths"),
    MODEL: ("model name", "model names"),
    PACKAGE: ("name of a package", "names of packages"),
    ADDRESS: ("address", "addresses"),
}
"""What one of each kind is called, and several."""

_PUBLIC = frozenset(
    {
        *sys.stdlib_module_names,
        *("torch", "torchvision", "torchaudio", "torchtitan", "torchtune", "functorch", "triton"),
        *("transformers", "accelerate", "datasets", "trl", "peft", "diffusers", "huggingface_hub"),
        *("lightning", "pytorch_lightning", "lightning_fabric", "deepspeed", "megatron", "ray"),
        *("apex", "transformer_engine", "flash_attn", "xformers", "bitsandbytes", "vllm", "sglang"),
        *("numpy", "pandas", "polars", "pyarrow", "scipy", "sklearn", "PIL", "cv2", "einops"),
        *("tqdm", "wandb", "mlflow", "tensorboard", "safetensors", "tokenizers", "stepscope"),
        *("py-spy", "memray", "nsys"),
    }
)
"""Packages whose files and modules say nothing of who trains what."""
_OPERATORS = frozenset(
    {
        *("aten", "at", "prim", "prims", "autograd", "c10", "c10d", "cub", "cuda", "cute", "mkl"),
        *("cutlass", "fbgemm", "flash", "gloo", "inductor", "mkldnn", "nccl", "onednn", "profiler"),
        *("pytorch_flash", "quantized", "std", "thrust", "triton_kernels", "higher_order", "void"),
        *(
            "_c10d_functional",
            "c10d_functional",
            "torch",
            "rocprim",
            "hipcub",
            "ck",
            "detail",
            "epilogue",
        ),
    }
)
"""Where operators and kernels of PyTorch and its libraries are defined."""
_LAYERS = re.compile(
    r"Identity|Sequential|Module(List|Dict)?|Parameter(List|Dict)?|(Lazy)?(Bi)?[Ll]inear"
    r"|\w*(Batch|Layer|Group|Instance|RMS|Response|LRN)Norm\w*|(Lazy)?Conv(Transpose)?[123]d"
    r"|Embedding(Bag)?|(LSTM|GRU|RNN)(Cell|Base)?|MultiheadAttention|\w*Pool[123]d"
    r"|Transformer((En|De)coder(Layer)?)?|(Alpha|Feature\w*)?Dropout[123]?d?|(Un)?[Ff](latten|old)"
    r"|Pixel(Un)?[Ss]huffle|Upsample\w*|\w{0,5}ReLU6?|[CSG]?ELU|SiLU|Mish|GLU|(Log)?Soft\w+|Hard\w+"
    r"|(Log)?Sigmoid|Tanh(shrink)?|Threshold|\w+Loss|\w+Pad[123]d|(Fully|Distributed)?\w*DataParallel"
    r"|OptimizedModule|CosineSimilarity|PairwiseDistance"
)
"""Modules of torch.nn, which are in every model."""
_NAMESPACE = re.compile(r"^(?:void )?([A-Za-z_]\w*)::[\w~]")
_INSTANCE = re.compile(r"^(?:nn\.Module: )?([A-Za-z_]\w*?)_\d+$")
_MODULE = re.compile(r"nn\.Module: ([A-Za-z_]\w*?)_\d+")
_MODEL_CLASS = re.compile(
    r"\b(?!Flash|Scaled|Efficient|Multi)[A-Z]\w+(?:For[A-Z]\w+|Model|LM|Decoder|Encoder|MLP"
    r"|Attention|Layer|Block)\b"
)
_MODEL_OPTION = re.compile(
    r"--?[\w-]*(?:model|checkpoint|ckpt|tokenizer|pretrained)[\w-]*[= ](\S+)"
)
_ADDRESS = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}\b"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    re.IGNORECASE,
)
_ENDING = r"\.(?:py|pyx|ipynb|sh|json|gz|pt|pth|pickle|pkl|csv|yaml|yml|toml|so|cuh?|cpp|html|txt)"
_PATHS = re.compile(
    r"[A-Za-z][\w+.-]*://[^\s'\"<>|,;()]+"  # URLs
    r"|(?:\b[A-Za-z]:|\\)?(?:\\[^\s\\/'\"<>|:*?,;()]+)+"  # Windows
    r"|(?<![\w.\]<-])~?(?:/[^\s/'\"<>|:*?,;()=\[\]]+)+/?"  # absolute
    rf"|(?:[\w.@+=-]+/)*[\w@+=-][\w.@+=-]*{_ENDING}\b"  # a file
)
_FRAME = re.compile(r"^((?:/|[A-Za-z]:\\)[^()\n]*?\.py)(?:\(\d+\)|:\d+)")
_HOME = re.compile(r"[\\/](?:home|Users|users)[\\/]([^\s/\\'\"<>|:]+)")
_OPEN_PAGE = re.compile(
    r"https?://([\w.-]+\.)?(pytorch|python|perfetto|nvidia)\.(org|dev|com)(/|$)"
)
_KEPT = re.compile(
    r"(trace|key_averages|stacks|steps|manifest|run|metrics|memory_timeline)\.[\w.]+"
    r"|rank\d+|window-\d+|\.raw|profiles|snapshots|\d{8}T\d{6}Z-\d+|stepscope|[A-Za-z]:|~|\.{0,2}"
    r"|dev|shm|home|Users|users|root|tmp|usr|lib\d*|bin|opt|mnt|data|\.?venv|(python|torchrun)[\d.]*|<\w+>"
)
"""Parts of paths that are the same everywhere."""
_NEW = re.compile(r"(?:host|user|path|model|package|address)\d+|[\d.]*")
_ANYBODY = frozenset({"", "root", "user", "users", "ubuntu", "runner", "nobody", "localhost"})
_TYPICAL = frozenset(
    {
        *("attention", "bert", "block", "causal", "chat", "classification", "conditional"),
        *("decoder", "encoder", "generation", "instruct", "language", "large", "layer", "masked"),
        *("module", "sequence", "small", "token", "tokens", "train", "trainer", "main", "test"),
    }
)
"""Parts of the names of models that many models have."""
_SHORTEST_WITHIN = 5
"""Characters of a name that is also replaced inside a longer word."""


class SharingError(StepscopeError):
    """A page that still has a name that it must not have."""


class Pseudonyms:
    """Gives names new ones, and replaces them in texts.

    Args:
        ordinary: Words of the report's own language. A name that is one of them is replaced within
            paths only: elsewhere, it is the word.
    """

    def __init__(self, ordinary: frozenset[str]) -> None:
        self._ordinary = ordinary
        self.given: dict[str, dict[str, str]] = {kind: {} for kind in KIND_NAMES}
        self._everywhere: dict[str, str] = {}  # name in lower case to its new one
        self._pattern: re.Pattern[str] | None = None

    @classmethod
    def of_reader(cls) -> Pseudonyms:
        """New names for who makes the page, and for the machine."""
        names = cls(ordinary_words())
        names._know_host(platform.node())
        with contextlib.suppress(KeyError, OSError, ImportError):  # a user without a name
            names._know(USER, getpass.getuser())
        return names

    def know_run(self, run: Run) -> None:
        """Note the names in the manifests of a run."""
        if (job := run.job) is not None:
            self._know_host(job.host)
            self._know_command(" ".join(job.command))
            for path in (job.working_directory, job.name):
                self._know_parts(path)
        for rank in run.ranks:
            if rank.manifest is not None:
                self._know_host(rank.manifest.host)
        self._know_parts(str(run.location))

    def content(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The content of a page with other names, and a section that says what was replaced.

        Raises:
            SharingError: A name is still there.
        """
        texts = list(_texts(content))
        of_torch = re.findall(r"\b(?:aten|c10d|nccl)::\w+", str(texts))
        self._ordinary |= words_in(" ".join(of_torch))
        for label, values in _labelled(content):
            for value in values:
                self._know_labelled(label, value)
        self._know_texts(texts)
        shared: dict[str, Any] = mapped(content, self.text)
        blocks = [{"is": "items", "items": self.summary()}]
        said = {"id": "shared", "title": "What was replaced", "blocks": blocks}
        shared["sections"] = [*shared["sections"], said]
        if self._pattern is not None:
            for text in _texts(shared):
                if found := self._pattern.search(text):
                    raise SharingError(
                        f"--share: '{found[0]}' would still be in the page, so none was written: "
                        "please report this"
                    )
        return shared

    def summary(self) -> list[str]:
        """How many names of each kind were replaced, without the names."""
        lines = []
        for kind, given in self.given.items():
            if given:
                some = ", ".join([*given.values()][:3]) + (" …" if len(given) > 3 else "")
                lines.append(f"{len(given)} {KIND_NAMES[kind][len(given) > 1]}: {some}")
        return lines or ["Nothing: the page names no path, host, user or model."]

    def text(self, text: str) -> str:
        """A text with other names."""
        text = self._known(text)
        text = _PATHS.sub(lambda found: self._path(found[0]), text)
        return self._known(_ADDRESS.sub(lambda found: self._address(found[0]), text))

    def is_ordinary(self, name: str) -> bool:
        """Whether a name was replaced in paths only."""
        return name not in self._everywhere

    def _known(self, text: str) -> str:
        if self._pattern is None and self._everywhere:
            self._pattern = _pattern_of(self._everywhere)
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._everywhere[found[0].lower()], text)

    def _know_texts(self, texts: list[str]) -> None:
        for text in texts:
            for user in _HOME.findall(text):
                self._know(USER, user)
            for model in (*_MODULE.findall(text), *_MODEL_CLASS.findall(text)):
                self._know_model(re.sub(r"_\d+$", "", model))
            if (space := _NAMESPACE.match(text)) and space[1] not in _OPERATORS | _PUBLIC:
                self._know(PACKAGE, space[1])
            if frame := _FRAME.match(text):
                self._know_parts(frame[1])
            for path in _PATHS.findall(self._known(text)):
                self._path(path)
            for address in _ADDRESS.findall(text):
                self._address(address)

    def _know_labelled(self, label: str, value: str) -> None:
        """Note a value that its label, or the heading of its column, says something about."""
        if re.search(r"host|node", label, re.IGNORECASE):
            self._know_host(value)
        elif label.lower() == "command":
            self._know_command(value)
        elif label.lower() in {"module", "modules"}:
            for part in value.split("/"):
                if found := _INSTANCE.match(part):
                    self._know_model(found[1])

    def _know_host(self, name: str) -> None:
        if re.fullmatch(r"[\w-]+(\.[\w-]+)*", name) and not name.isdigit():
            for one in (name, name.partition(".")[0]):
                self._know(HOST, one)

    def _know_command(self, command: str) -> None:
        """Note the values in a command line: models, files, and what else has a name."""
        for value in _MODEL_OPTION.findall(command):
            for part in re.split(r"[/\\]", value.strip("'\"")):
                self._know_model(part)
        for word in command.split():
            value = word.partition("=")[2] if word.startswith("-") else word
            for part in re.split(r"[/\\]", value):
                self._part(part)

    def _know_parts(self, path: str) -> None:
        for user in _HOME.findall(path):
            self._know(USER, user)
        self._path(path)

    def _know_model(self, name: str) -> None:
        if len(name) > 1 and not name.startswith("-") and not _LAYERS.fullmatch(name):
            self._know(MODEL, name)

    def _path(self, path: str) -> str:
        """A path whose parts have other names, but for those of public packages."""
        if _OPEN_PAGE.match(path):
            return path
        scheme, mark, rest = path.rpartition("://")
        parts = re.split(r"([\\/])", rest)  # each second one is a separator
        end = 2 * _begin_of_public(parts[::2])
        return scheme + mark + "".join([*map(self._part, parts[:end]), *parts[end:]])

    def _part(self, part: str) -> str:
        """A part of a path: a directory or a file, perhaps called after a user, host or model."""
        if part in {"/", "\\"} or _KEPT.fullmatch(part) or re.fullmatch(r"[\d.e+-]*", part):
            return part
        if (known := self._everywhere.get(part.lower())) is not None:
            return known
        suffix = "".join(PurePosixPath(part).suffixes[-1:])
        suffix = suffix if re.fullmatch(_ENDING, suffix) else ""
        return self._know(PATH, part.removesuffix(suffix)) + suffix

    def _address(self, address: str) -> str:
        """An address of the network or of mail; four numbers may be a version: 12.8.4.1."""
        if re.match(r"(?:[02-9]|1[1-9]?|127)\.", address):
            return address
        return self._know(ADDRESS, address)

    def _know(self, kind: str, name: str) -> str:
        """The new name of a name, which gets one if it has none."""
        key = name.lower()
        if key in _ANYBODY or _NEW.fullmatch(key):
            return name
        if key in self._everywhere:
            return self._everywhere[key]
        given = self.given[kind]
        new = given.setdefault(key, f"{kind}{len(given) + 1}")
        is_long = len(key) > (2 if kind == PATH else 1)
        if is_long and key not in self._ordinary | _PUBLIC:
            self._everywhere[key] = new
            self._pattern = None
        for part in re.findall(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}", name):
            if part.lower() not in self._ordinary | _TYPICAL | _PUBLIC | _OPERATORS:
                self._everywhere.setdefault(part.lower(), new)
                self._pattern = None
        return new


def ordinary_words() -> frozenset[str]:
    """The words of the pages on findings and questions: English, and PyTorch's language."""
    from stepscope._manual import all_pages

    pages = (page for page in all_pages().values() if page.kind in {"findings", "questions"})
    return words_in(" ".join(page.path.read_text(encoding="utf-8") for page in pages))


def words_in(text: str) -> frozenset[str]:
    """The words in a text, in lower case."""
    return frozenset(word.lower() for word in re.findall(r"[A-Za-z]{2,}", text))


def _pattern_of(names: Mapping[str, str]) -> re.Pattern[str]:
    """Finds names, the longest first; short ones only as words of their own."""
    each = (
        re.escape(name)
        if len(name) >= _SHORTEST_WITHIN
        else rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
        for name in sorted(names, key=len, reverse=True)
    )
    return re.compile("|".join(each), re.IGNORECASE)


def _begin_of_public(names: list[str]) -> int:
    """The first part from which on a path is that of a public package; the end if of none."""
    for place, name in enumerate(names):
        is_library = name in {"site-packages", "dist-packages"}
        if is_library or re.fullmatch(r"python3\.\d+", name):
            inside = "".join(names[place + 1 : place + 2])
            if inside in {"site-packages", "dist-packages"}:
                continue
            return place if inside.partition(".")[0] in _PUBLIC else len(names)
    # A profiler writes the paths of packages from their own folder on.
    begins_public = names[0].partition(".")[0] in _PUBLIC
    return 0 if begins_public and (len(names) > 1 or names[0].endswith(".py")) else len(names)


def _texts(value: object) -> Iterator[str]:
    """The texts in a page's content; keys are the page's own."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _labelled(value: object) -> Iterator[tuple[str, list[str]]]:
    """The labels of facts and the headings of columns, with their texts."""
    if isinstance(value, Mapping):
        if value.get("is") == "facts":
            yield from ((str(label), [str(text)]) for label, text in value["facts"])
        if value.get("is") == "table":
            for place, column in enumerate(value["columns"]):
                yield str(column["name"]), list(_texts([row[place] for row in value["rows"]]))
        for item in value.values():
            yield from _labelled(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _labelled(item)
