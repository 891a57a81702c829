"""The guideline's rules, one record each: condition, effect, settings by system, and evidence."""

from tcpdelay.rules.application_rules import APPLICATION_RULES
from tcpdelay.rules.rule import Level, Rule, Settings, Status
from tcpdelay.rules.situation import Effect, Situation
from tcpdelay.rules.tcp_rules import TCP_RULES

RULES = (*TCP_RULES, *APPLICATION_RULES)
"""All rules, those of TCP first."""

__all__ = ["RULES", "Effect", "Level", "Rule", "Settings", "Situation", "Status"]
