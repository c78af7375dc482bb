"""Where the limits of this process's control group can be read. Knows nothing of which limits there are.

Source: Linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def control_group_folders(controller: str, membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> list[Path]:
    """Return the folder of the process's group for `controller` and those of its parents, innermost first.

    Both versions are covered: lines of `membership` read "0::/path" in version 2 and "4:cpu,cpuacct:/path" in version 1,
    where each controller has its own mount. Inside a container the path can lead out of what is mounted; then the
    mount's root stands for it. Empty where there are no control groups.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, names, path = line.split(":", 2)
        root = mount if names == "" else mount / controller
        if (names == "" or controller in names.split(",")) and root.is_dir():
            group = root / path.lstrip("/")
            parents = [group, *group.parents]
            folders += [folder for folder in parents if folder.is_relative_to(root) and folder.is_dir()]
    return folders
