"""How far the models' predictions are from captures of real TCP."""
