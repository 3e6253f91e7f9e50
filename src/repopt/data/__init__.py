"""Data: sources by name, images that live on the device, batches that are a function of the seed."""

from repopt.data.augment import Augmentation
from repopt.data.datasets import DataSet, load_data
from repopt.data.images import ImageFiles, Images
from repopt.data.loaders import EvalBatches, TrainBatches

__all__ = ["Augmentation", "DataSet", "EvalBatches", "ImageFiles", "Images", "TrainBatches", "load_data"]
