"""Document 004: dynamic=, modes, functions against the whole model, and a classifier chosen at random.

The models are those of the demo (ccompile.demo_models), which come from this document; `width` and `side` make them
smaller than there."""

import time

import ccompile
import torch
import torch.nn as nn
from ccompile.demo_models import (
    ComplexModel,
    ConvNetMix,
    LocalOptimizedNetwork,
    SimpleNet,
    complex_activation,
    feature_enhancement,
    mix_classifier,
    mix_features,
)
from seeds.device import Event, device, synchronize
from seeds.listing import calls, program, t


@program("004 SimpleNet, dynamic=True and False")
def _():
    net = SimpleNet().to(device)
    static_compile = ccompile.compile(net, dynamic=False)
    dynamic_compile = ccompile.compile(net, dynamic=True)
    input_32 = t(32, 512).to(device)
    input_64 = t(64, 512).to(device)
    start_event = Event(enable_timing=True)
    end_event = Event(enable_timing=True)
    results = []
    for compiled, batch in (
        (static_compile, input_32),
        (dynamic_compile, input_32),
        (static_compile, input_64),
        (dynamic_compile, input_64),
        (net, input_32),
        (dynamic_compile, input_32),
    ):
        start_event.record()
        results.append(compiled(batch))
        end_event.record()
        synchronize()
        print(f"{start_event.elapsed_time(end_event):.4f} ms")
    return results


def in_mode(complex_net, input_tensor, **settings):
    n = 1  # the document's: 20
    compile_time_list = []
    compiled_net = ccompile.compile(complex_net, **settings)
    start_event = Event(enable_timing=True)
    end_event = Event(enable_timing=True)
    start_event.record()
    _ = compiled_net(input_tensor)
    end_event.record()
    synchronize()
    warm_time = start_event.elapsed_time(end_event)
    print(f"first call: {warm_time:.4f} ms")
    for i in range(n):
        start_event.record()
        _ = compiled_net(input_tensor)
        end_event.record()
        synchronize()
        compile_time = start_event.elapsed_time(end_event)
        compile_time_list.append(compile_time)
    print(f"{sum(compile_time_list) / n:.4f} ms")
    return compiled_net(input_tensor)


MODES = {"mode": "default"}, {"mode": "reduce-overhead"}, {"mode": "max-autotune", "dynamic": False}


@program("004 ComplexModel in three modes")
def _():
    # Dropout and batch norms in training mode, as there; its batch: 32 images of 224x224
    complex_net = ComplexModel(width=8).to(device)
    input_tensor = t(2, 3, 96, 96).to(device)
    return [in_mode(complex_net, input_tensor, **settings) for settings in MODES]


calls("004 complex_activation", complex_activation, (t(2, 4, 8, 8),), graphs=1, breaks=0)
calls("004 feature_enhancement", feature_enhancement, (t(2, 4, 8, 8),), graphs=1, breaks=0)


def timed(model, x):
    start = time.time()
    for _ in range(2):  # the document's: 10
        result = model(x)
    synchronize()
    return (time.time() - start) / 2, result


def compilation_strategies():
    """test_compilation_strategies in the document, where batches are 16 images of 224x224."""
    model = LocalOptimizedNetwork(width=8).to(device)
    x = t(2, 3, 16, 16).to(device)

    base_time, base = timed(model, x)

    model_func_compiled = LocalOptimizedNetwork(width=8).to(device)
    model_func_compiled.activation = ccompile.compile(complex_activation, mode="max-autotune")
    model_func_compiled.enhance_features = ccompile.compile(feature_enhancement, mode="max-autotune")
    _ = model_func_compiled(x)
    func_time, functions = timed(model_func_compiled, x)

    model_full = LocalOptimizedNetwork(width=8).to(device)
    model_compiled = ccompile.compile(model_full, mode="max-autotune")
    _ = model_compiled(x)
    full_time, full = timed(model_compiled, x)

    print(f"functions {base_time / func_time:.2f}x, whole model {base_time / full_time:.2f}x")
    return base, functions, full


@program("004 LocalOptimizedNetwork, functions and whole")
def _():
    return compilation_strategies()


WIDTH, SIDE = 4, 16  # the document's: 32 and 64


@program("004 ConvNetMix, whole and in halves")
def _():
    features, classifier = mix_features(WIDTH), mix_classifier(WIDTH, SIDE)
    input_tensor = t(4, 3, SIDE, SIDE).to(device)

    net = ConvNetMix(features, [classifier]).to(device)
    compiled_net = ccompile.compile(net)
    whole = [compiled_net(input_tensor) for _ in range(2)]

    features_compiled = ccompile.compile(features)
    classifier_compiled = ccompile.compile(classifier)
    net_separate = ConvNetMix(features_compiled, [classifier_compiled]).to(device)
    return whole, [net_separate(input_tensor) for _ in range(2)]


@program("004 ConvNetMix, a random classifier")
def _():
    features = mix_features(WIDTH)
    classifier_list = nn.ModuleList([mix_classifier(WIDTH, SIDE) for _ in range(5)])
    input_tensor = t(4, 3, SIDE, SIDE).to(device)

    # In the document, compiling the whole network failed here.
    net = ConvNetMix(features, classifier_list).to(device)
    compiled_net = ccompile.compile(net, dynamic=True, mode="reduce-overhead")
    whole = [compiled_net(input_tensor) for _ in range(6)]

    features_compiled = ccompile.compile(features)
    classifier_compiled = nn.ModuleList([ccompile.compile(classifier) for classifier in classifier_list])
    net_separate = ConvNetMix(features_compiled, classifier_compiled).to(device)
    return whole, [net_separate(input_tensor) for _ in range(6)]
