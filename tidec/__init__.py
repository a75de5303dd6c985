"""tidec: a schedule compiler for FSDP2 communication. The public names, each loaded when it is first used."""
from __future__ import annotations

__version__ = "0.1.0"

# Public name: (module, name in it). Loading one loads what it needs; `import tidec` loads nothing.
_PUBLIC = {
    "compile": ("tidec.api", "compile"),
    "load": ("tidec.api", "load"),
    "capture": ("tidec.run.capture", "capture"),
    "install": ("tidec.api", "install"),
    "uninstall": ("tidec.api", "uninstall"),
    "report": ("tidec.api", "report"),
    "recheck": ("tidec.verify.recheck", "recheck"),
    "Bundle": ("tidec.emit.bundle", "Bundle"),
    "Topology": ("tidec.inputs.topology", "Topology"),
    "Signature": ("tidec.inputs.signature", "Signature"),
    "TidecError": ("tidec.errors", "TidecError"),
    "TidecWarning": ("tidec.errors", "TidecWarning"),
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tidec' has no attribute {name!r}")
    import importlib

    module, attribute = _PUBLIC[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
