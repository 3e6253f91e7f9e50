"""A Hyper-Search: which scales appendix E looks at, and the search's share of the cost of ImageNet training.

    share = images / 1,281,167 x epochs / 120 x (image size / 224)^2

The paper's search (section 4.1) also has (3x3 + 1x1) / (3x3) = 10/9 in it, as its blocks convolve once a branch; a
search block of repopt merges the kernels first and convolves once.
"""

from collections.abc import Mapping, Sequence

from repopt.report.runs import Run

# the training that the paper compares its search with
IMAGENET_IMAGES, IMAGENET_EPOCHS, IMAGENET_SIZE = 1_281_167, 120, 224

Means = Mapping[str, Mapping[str, float]]


# of the paper's own search, 240 epochs of CIFAR-100: 50/1281 x 240/120 x (32/224)^2 x 10/9
PAPERS_SHARE = 0.0018


def cost_share(images: int, epochs: int, image_size: int) -> float:
    """The cost of a search as a fraction of that of the paper's ImageNet training.

    Example:
        >>> f"{cost_share(50_000, 240, 32) * 10 / 9:.2%}"  # the paper's figure, its two convolutions a block included
        '0.18%'
    """
    return images / IMAGENET_IMAGES * epochs / IMAGENET_EPOCHS * (image_size / IMAGENET_SIZE) ** 2


def stages(means: Means) -> list[list[str]]:
    """The operators by stage: one without identity starts a stage, as it changes the shape."""
    found: list[list[str]] = []
    for operator, branches in means.items():
        if not found or ("identity" not in branches and _any_identity(means)):
            found.append([])
        found[-1].append(operator)
    return found


def sampled_operator(means: Means) -> str:
    """The last operator with an identity of the longest stage: in a RepOpt-VGG, the last block of the third stage."""
    longest = max(stages(means), key=len)
    return [operator for operator in longest if "identity" in means[operator] or not _any_identity(means)][-1]


def branches(means: Means) -> list[str]:
    """All branches, the identity last."""
    found = dict.fromkeys(branch for operator in means.values() for branch in operator)
    return sorted(found, key=lambda branch: branch == "identity")


def over_epochs(run: Run, operator: str) -> dict[str, dict[int, float]]:
    """{branch: {epoch: mean of the operator's scales}}, for all branches of the model."""
    names = branches(run.scales[max(run.scales)])
    history = {epoch: means.get(operator, {}) for epoch, means in run.scales.items()}
    return {branch: {epoch: means[branch] for epoch, means in history.items() if branch in means} for branch in names}


def by_depth(means: Means) -> dict[str, list[dict[int, float]]]:
    """{branch: [{place of the operator: mean of its scales} for each stage]}, places counted from 1."""
    place = {operator: number for number, operator in enumerate(means, start=1)}

    def pieces(branch: str, members: Sequence[str]) -> dict[int, float]:
        return {place[operator]: means[operator][branch] for operator in members if branch in means[operator]}

    return {
        branch: [piece for members in stages(means) if (piece := pieces(branch, members))] for branch in branches(means)
    }


def stage_starts(means: Means) -> list[int]:
    """The places of the stages' first operators."""
    sizes = [len(members) for members in stages(means)]
    return [1 + sum(sizes[:index]) for index in range(len(sizes))]


def _any_identity(means: Means) -> bool:
    return any("identity" in branches for branches in means.values())
