"""The peer: ONNX Runtime's own static quantization of one model on one folder of .npy samples.

usage: peer_quantize.py MODEL SAMPLES METHOD OUT     (METHOD: Entropy or MinMax)
"""
import pathlib
import sys

import numpy as np
from onnxruntime.quantization import (CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType,
                                      quantize_static)


class Samples(CalibrationDataReader):
    """Hands over one sample at a time, as its documentation asks."""

    def __init__(self, folder, name):
        self.files = iter(sorted(pathlib.Path(folder).glob("*.npy")))
        self.name = name

    def get_next(self):
        path = next(self.files, None)
        if path is None:
            return None
        sample = np.load(path)
        return {self.name: sample if sample.ndim == 4 else sample[None]}


def main():
    model, samples, method, out = sys.argv[1:]
    import onnxruntime
    name = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()[0].name
    quantize_static(model, out, Samples(samples, name), quant_format=QuantFormat.QDQ, per_channel=True,
                    activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
                    calibrate_method=getattr(CalibrationMethod, method),
                    extra_options={"ActivationSymmetric": True})


main()
