"""What a Hyper-Search costs, as a share of ImageNet training.

    share = images / 1,281,167 x epochs / 120 x (image size / 224)^2

The paper's search (section 4.1) also has (3x3 + 1x1) / (3x3) = 10/9 in it, as its blocks convolve once a branch; a
search block of repopt merges the kernels first and convolves once.
"""

# the training that the paper compares its search with
IMAGENET_IMAGES, IMAGENET_EPOCHS, IMAGENET_SIZE = 1_281_167, 120, 224

# of the paper's own search, 240 epochs of CIFAR-100: 50/1281 x 240/120 x (32/224)^2 x 10/9
PAPERS_SHARE = 0.0018


def cost_share(images: int, epochs: int, image_size: int) -> float:
    """The cost of a search as a fraction of that of the paper's ImageNet training.

    Example:
        >>> f"{cost_share(50_000, 240, 32) * 10 / 9:.2%}"  # the paper's figure, its two convolutions a block included
        '0.18%'
    """
    return images / IMAGENET_IMAGES * epochs / IMAGENET_EPOCHS * (image_size / IMAGENET_SIZE) ** 2
