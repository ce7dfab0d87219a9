package definition

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
	"github.com/google/cel-go/interpreter"
	"k8s.io/utils/lru"
)

const (
	// maxExpressionBytes is the length of an expression's text.
	maxExpressionBytes = 8 << 10
	// maxEstimate is what an expression may cost at worst, in CEL's units, as it is estimated when the definition is read:
	// enough for two loops over the values one inside the other, and too little for three.
	maxEstimate = 300_000_000
	// maxCost is what it may cost when it runs, and maxDuration how long it may take: what CEL counts is not all that
	// takes time.
	maxCost     = 1_000_000
	maxDuration = 5 * time.Second
	// maxOptionalMaps is how many of the macros optMap and optFlatMap an expression may hold: each writes what it is
	// called on twice, so that a chain of them takes four times as long to compile for each.
	maxOptionalMaps = 5
	// maxElements and maxCharacters bound each map, list and string of the values that an expression may touch: what
	// makes an estimate possible. What it does not touch may be larger.
	maxElements   = 1_000
	maxCharacters = 1_000
)

// variable is what an expression calls the values.
const variable = "spec"

var optionalMaps = regexp.MustCompile(`\bopt(Flat)?Map\b`)

// compiled keeps programs by their text: definitions are read far more often than they change.
var compiled = lru.New(256)

// environmentOf has CEL's own libraries for strings and lists, and the values as its one variable. Kubernetes' environment
// is not it: there a map must not hold both a literal and a value of unknown type, which is what an account often is.
var environmentOf = sync.OnceValues(func() (*cel.Env, error) {
	env, err := cel.NewEnv(
		cel.Variable(variable, cel.DynType),
		cel.OptionalTypes(), cel.CrossTypeNumericComparisons(true), cel.DefaultUTCTimeZone(true),
		cel.ASTValidators(cel.ValidateRegexLiterals()),
		// The versions are the first with estimates of cost.
		ext.Strings(ext.StringsVersion(5)), ext.Lists(ext.ListsVersion(3), ext.ListsMaxRangeSize(maxElements)),
		cel.CostEstimatorOptions(checker.OverloadCostEstimate("lists_range", costOfRange)),
		ext.Bindings(ext.BindingsVersion(1)), ext.TwoVarComprehensions(ext.TwoVarComprehensionsVersion(0)),
	)
	if err != nil {
		return nil, err
	}
	return env.Extend(cel.CustomTypeAdapter(bounded{env.CELTypeAdapter()}))
})

// compile is the program of an expression, or what is wrong with it.
func compile(text string) (cel.Program, error) {
	if program, ok := compiled.Get(text); ok {
		return program.(cel.Program), nil
	}
	if len(text) > maxExpressionBytes {
		return nil, fmt.Errorf("has %d bytes, more than the %d that are allowed", len(text), maxExpressionBytes)
	}
	if count := len(optionalMaps.FindAllStringIndex(text, maxOptionalMaps+1)); count > maxOptionalMaps {
		return nil, fmt.Errorf("has more than the %d optMap and optFlatMap that are allowed", maxOptionalMaps)
	}
	env, err := environmentOf()
	if err != nil {
		return nil, fmt.Errorf("build the environment of expressions: %w", err)
	}
	checked, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, fmt.Errorf("does not compile: %s", oneLine(issues))
	}
	if t := checked.OutputType(); t.Kind() != types.ListKind && t.Kind() != types.DynKind {
		return nil, fmt.Errorf("yields a value of type %s, not a list of accounts", t)
	}
	estimate, err := env.EstimateCost(checked, sizes{})
	if err != nil {
		return nil, fmt.Errorf("cannot be estimated: %w", err)
	}
	if estimate.Max > maxEstimate {
		return nil, fmt.Errorf("may cost %s, more than the %d that are allowed: nest fewer loops over the values", cost(estimate.Max), maxEstimate)
	}
	program, err := env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, fmt.Errorf("cannot be run: %w", err)
	}
	compiled.Add(text, program)
	return program, nil
}

// oneLine are the compiler's errors without the lines that draw an arrow under the text.
func oneLine(issues *cel.Issues) string {
	var all []string
	for _, e := range issues.Errors() {
		all = append(all, fmt.Sprintf("%d:%d: %s", e.Location.Line(), e.Location.Column()+1, e.Message))
	}
	return strings.Join(all, "; ")
}

func cost(units uint64) string {
	if units == math.MaxUint64 {
		return "any amount"
	}
	return fmt.Sprint(units)
}

// evaluate is what an expression yields for an application's values. Its errors quote the expression, never the values.
func evaluate(ctx context.Context, text string, values map[string]any) ([]declaration, error) {
	program, err := compile(text)
	if err != nil {
		return nil, fmt.Errorf("the expression %w", err)
	}
	if values == nil {
		values = map[string]any{}
	}
	ctx, cancel := context.WithTimeout(ctx, maxDuration)
	defer cancel()
	result, _, err := program.ContextEval(ctx, map[string]any{variable: values})
	if err != nil {
		return nil, explain(text, err)
	}
	list, ok := result.(traits.Lister)
	if !ok {
		return nil, errors.New("the expression yields no list")
	}
	count := int64(list.Size().(types.Int))
	if count > maxAccounts {
		return nil, tooMany(int(count))
	}
	found := make([]declaration, 0, count)
	for i := range count {
		d, err := yielded(list.Get(types.Int(i)))
		if err != nil {
			return nil, fmt.Errorf("element %d of what the expression yields %w", i, err)
		}
		found = append(found, d)
	}
	return found, nil
}

// yielded is one element of an expression's result.
func yielded(element ref.Val) (declaration, error) {
	fields, ok := element.(traits.Mapper)
	if !ok {
		return declaration{}, errors.New("is no map")
	}
	texts := map[string]string{}
	for names := fields.Iterator(); names.HasNext() == types.True; {
		key := names.Next()
		name, ok := key.(types.String)
		if !ok || name != "name" && name != "username" && name != "owner" {
			return declaration{}, errors.New("has a field other than name, username and owner")
		}
		text, ok := fields.Get(key).(types.String)
		if !ok {
			return declaration{}, fmt.Errorf("has a %s that is no string", name)
		}
		texts[string(name)] = string(text)
	}
	return declare(texts["name"], texts["username"], texts["owner"])
}

// explain says why an expression did not evaluate and, where it is known, which part of its text did not. CEL's own
// words are left out: they quote values.
func explain(text string, err error) error {
	var cancelled interpreter.EvalCancelledError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return errors.New("the expression was not evaluated in time")
	case errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded:
		return fmt.Errorf("the expression costs more than the %d that are allowed, for these values", maxCost)
	}
	var limit tooLarge
	var failure *types.Err
	problem := "cannot be evaluated for these values"
	switch {
	case errors.As(err, &limit):
		problem = "meets " + limit.Error()
	case strings.HasPrefix(err.Error(), "no such key"), strings.HasPrefix(err.Error(), "no such attribute"):
		problem = "asks for a field that is absent from the values"
	case strings.HasPrefix(err.Error(), "no such overload"):
		problem = "meets a value of another type than it expects"
	}
	if errors.As(err, &failure) && failure.NodeID() > 0 {
		if place, ok := placeOf(text, failure.NodeID()); ok {
			return fmt.Errorf("the expression %s, at %s", problem, place)
		}
	}
	return fmt.Errorf("the expression %s", problem)
}

// placeOf is where in an expression's text a node begins.
func placeOf(text string, node int64) (string, bool) {
	env, err := environmentOf()
	if err != nil {
		return "", false
	}
	parsed, issues := env.Parse(text)
	if issues.Err() != nil {
		return "", false
	}
	at := parsed.NativeRep().SourceInfo().GetStartLocation(node)
	if at.Line() < 1 {
		return "", false
	}
	return fmt.Sprintf("%d:%d", at.Line(), at.Column()+1), true
}

// tooLarge is why a value cannot be touched by an expression.
type tooLarge string

func (t tooLarge) Error() string { return string(t) }

// A bounded adapter hands values to an expression as it touches them, and refuses those over the bounds.
type bounded struct{ types.Adapter }

// NativeToValue is a value as CEL has it.
func (b bounded) NativeToValue(value any) ref.Val {
	switch v := value.(type) {
	case map[string]any:
		if len(v) > maxElements {
			return types.WrapErr(tooLarge(fmt.Sprintf("a map of more than %d elements", maxElements)))
		}
		return types.NewStringInterfaceMap(b, v)
	case []any:
		if len(v) > maxElements {
			return types.WrapErr(tooLarge(fmt.Sprintf("a list of more than %d elements", maxElements)))
		}
		return types.NewDynamicList(b, v)
	case string:
		if len(v) > maxCharacters {
			return types.WrapErr(tooLarge(fmt.Sprintf("a string of more than %d bytes", maxCharacters)))
		}
	}
	return b.Adapter.NativeToValue(value)
}

// sizes estimates what comes out of the values by the bounds that hold there. Everything else CEL estimates itself, or
// it is unknown, and then too costly.
type sizes struct{}

// EstimateSize is the size of a map, list or string of the values.
func (sizes) EstimateSize(node checker.AstNode) *checker.SizeEstimate {
	path := node.Path()
	fromValues := len(path) > 0 && (path[0] == variable || strings.HasPrefix(path[0], "@"))
	if !fromValues && !takesFromValues(node.Expr()) {
		return nil
	}
	return &checker.SizeEstimate{Max: max(maxElements, maxCharacters)}
}

// EstimateCallCost leaves calls to CEL.
func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// takesFromValues reports whether an expression is a call that yields what it was given: a value that may be absent,
// like spec.?users.orValue({}), or one as a string.
func takesFromValues(e ast.Expr) bool {
	if e == nil || e.Kind() != ast.CallKind {
		return false
	}
	switch e.AsCall().FunctionName() {
	case "_?._", "_[?_]", "orValue", "or", "value", "optional.ofNonZeroValue", "optional.of", "string":
		return true
	}
	return false
}

// costOfRange is that of lists.range, which yields no more than maxElements.
func costOfRange(checker.CostEstimator, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	size := checker.SizeEstimate{Max: maxElements}
	return &checker.CallEstimate{CostEstimate: size.MultiplyByCostFactor(1), ResultSize: &size}
}
