"""Acceptance predictors: one file for each, with everything about it.

The file of a predictor has, from top to bottom:

* a docstring with the paper and the equation;
* ``TrainingOptions``: the options of ``train acceptance --predictor NAME``, a subclass of
  :class:`~specpilot.controllers.training_options.PredictorTrainingOptions`;
* ``Config``: what the checkpoint stores, a subclass of
  :class:`~specpilot.controllers.checkpoints.config.ControllerConfig`. Its ``module`` makes the network, its
  ``predictor`` the object that decoding uses;
* the network, an ``nn.Module``;
* ``new_network(options, data, parts)``: a network to train, from a :class:`~.training.DataSummary` and the training
  examples;
* ``inputs(examples, options)``: the network's inputs for :class:`~.training.Examples`;
* ``loss(network, batch, options)``: the sum of the losses of a :class:`~.training.Batch`, and their number or weight;
* ``predictions(network, batch, options)``: labels (n,), and logits (n,) by name, that metrics are computed of;
  ``"head"`` is the network's;
* ``metrics(judged, options)``: the reported metrics, of a :class:`~.metrics.Metrics` for each name;
* ``to_checkpoint(options, data, origin)``: the ``Config`` of a trained network;
* the predictor: a subclass of :class:`~.predictor.TrainedPredictor`.

A line in ``PREDICTORS`` of :mod:`specpilot.controllers.registry` names the file. The copy head has the same contents
except ``TrainingOptions`` and a ``TrainedPredictor``: ``train copies`` trains it, on copied tokens.
"""
