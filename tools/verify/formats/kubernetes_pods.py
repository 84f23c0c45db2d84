"""What a Kubernetes API server and Kubeflow's operators look at: fields that exist, and what a container starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from accepting import Values
from nodes import Stage

VERSION = "1.37"
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def documents(file: Path) -> dict[str, dict[str, Any]]:
    """By kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(file.read_text())}


def valid(document: Mapping[str, Any]) -> None:
    """A resource of Kubernetes itself, against its OpenAPI schema; fields that it has not are errors."""
    kubernetes_validate.validate(document, VERSION, strict=True)


def valid_pod(template: Mapping[str, Any]) -> None:
    """A pod's template, where a custom resource holds one."""
    metadata = {"name": "x", **template.get("metadata", {})}
    valid(
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "x"},
            "template": {"metadata": metadata, "spec": template["spec"]},
        }
    )


def runs(
    stage: Stage,
    container: Mapping[str, Any],
    pod: Mapping[str, Any],
    files: Mapping[str, str],
    operators: Sequence[Mapping[str, str]],
) -> None:
    """Run the container once for each set of variables that its operator gives pods, with the ConfigMap mounted."""
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    (volume,) = [each for each in pod["volumes"] if "configMap" in each]
    folder = stage.folder / "mounted"
    for item in volume["configMap"]["items"]:
        path = folder / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[item["key"]])
    assert set(mounts) == {each["name"] for each in pod["volumes"]}
    own = {each["name"]: each["value"] for each in container["env"]}
    command = [*container["command"], *container["args"]]
    words = [word.replace(mounts[volume["name"]] + "/", f"{folder}/") for word in command]
    for given in operators:
        stage.run(words, **own, **given)


def asked_of(limits: Mapping[str, Any]) -> Values:
    """GPUs of a pod, whatever the vendor calls them."""
    (count,) = limits.values()
    return {"gpus_per_node": int(count)}
