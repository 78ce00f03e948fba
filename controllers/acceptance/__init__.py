"""Acceptance predictors, each in a file of its own.

The file of a predictor has, from top to bottom:

* a docstring with the paper and the equation;
* ``TrainingOptions``: the options of ``train acceptance --predictor NAME``, a subclass of
  :class:`~specpilot.controllers.training_options.PredictorTrainingOptions`;
* ``Config``: the configuration in the checkpoint, a subclass of
  :class:`~specpilot.controllers.checkpoints.config.ControllerConfig`. Its ``module`` returns the network, its
  ``predictor`` the object that decoding uses;
* the network, an ``nn.Module``;
* ``new_network(options, data, parts)``: returns a network to train, for a :class:`~.training.DataSummary` and the
  training examples;
* ``inputs(examples, options)``: returns the network's inputs for :class:`~.training.Examples`;
* ``loss(network, batch, options)``: returns the sum of the losses of a :class:`~.training.Batch`, and their number or
  weight;
* ``predictions(network, batch, options)``: returns labels (n,), and logits (n,) by name, from which metrics are
  computed; ``"head"`` is the name of the network's logits;
* ``metrics(judged, options)``: returns the reported metrics, given a :class:`~.metrics.Metrics` for each name;
* ``to_checkpoint(options, data, origin)``: returns the ``Config`` of a trained network;
* the predictor: a subclass of :class:`~.predictor.TrainedPredictor`.

``PREDICTORS`` in :mod:`specpilot.controllers.registry` has a line for each file. The file of the copy head has the same
contents except ``TrainingOptions`` and a ``TrainedPredictor``: ``train copies`` trains the copy head on copied tokens.
"""
