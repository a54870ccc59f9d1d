"""Training: `train.train(config, workdir)` is the stage; the other files are its parts."""
