// The oracle: what Kubernetes itself makes of an expression, an object or a quantity. Each line on standard input is a
// question as JSON, each line on standard output its answer, in the same order.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"gopkg.in/inf.v0"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	resourceinternal "k8s.io/kubernetes/pkg/apis/resource"
	resourcev1 "k8s.io/kubernetes/pkg/apis/resource/v1"
	"k8s.io/kubernetes/pkg/apis/resource/validation"
	"k8s.io/utils/ptr"
)

// question has exactly one of its fields set (Devices goes with Expression).
type question struct {
	// Expression is a selector, asked of each of Devices.
	Expression string   `json:"expression,omitempty"`
	Devices    []device `json:"devices,omitempty"`
	// Class and Slice are objects to validate.
	Class *resourceapi.DeviceClass   `json:"class,omitempty"`
	Slice *resourceapi.ResourceSlice `json:"slice,omitempty"`
	// Quantity is text to read.
	Quantity *string `json:"quantity,omitempty"`
	// Fleet is to be given to a claim, whole.
	Fleet *fleet `json:"fleet,omitempty"`
}

type device struct {
	Driver string             `json:"driver"`
	Device resourceapi.Device `json:"device"`
}

type answer struct {
	// Error is why the expression does not compile, the object is invalid or the quantity cannot be read.
	Error string `json:"error,omitempty"`
	// MaxCost is the estimate that the API server holds against its limit.
	MaxCost uint64 `json:"maxCost,omitempty"`
	// Matches answers for each device.
	Matches []match `json:"matches,omitempty"`
	// Nano is the quantity in billionths.
	Nano string `json:"nano,omitempty"`
	// Devices are those allocated, as pool/device, in order; none when the claim has to wait.
	Devices []string `json:"devices,omitempty"`
}

type match struct {
	Match bool   `json:"match"`
	Error string `json:"error,omitempty"`
}

func main() {
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

func serve(in io.Reader, out io.Writer) error {
	questions := json.NewDecoder(in)
	buffered := bufio.NewWriter(out)
	answers := json.NewEncoder(buffered)
	for {
		var q question
		if err := questions.Decode(&q); errors.Is(err, io.EOF) {
			return buffered.Flush()
		} else if err != nil {
			return err
		}
		if err := answers.Encode(ask(q)); err != nil {
			return err
		}
	}
}

func ask(q question) answer {
	switch {
	case q.Class != nil:
		return validateClass(q.Class)
	case q.Slice != nil:
		return validateSlice(q.Slice)
	case q.Quantity != nil:
		return readQuantity(*q.Quantity)
	case q.Fleet != nil:
		return allocateAll(*q.Fleet)
	default:
		return evaluate(q.Expression, q.Devices)
	}
}

func evaluate(expression string, devices []device) answer {
	// As the API server of 1.37 does with its default feature gates: list attributes are alpha.
	compiled := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true}).
		CompileCELExpression(expression, dracel.Options{EnvType: ptr.To(environment.NewExpressions)})
	if compiled.Error != nil {
		return answer{Error: compiled.Error.Error()}
	}
	result := answer{MaxCost: compiled.MaxCost}
	for _, d := range devices {
		matches, _, err := compiled.DeviceMatches(context.Background(), dracel.Device{
			Driver:                   d.Driver,
			AllowMultipleAllocations: d.Device.AllowMultipleAllocations,
			Attributes:               d.Device.Attributes,
			Capacity:                 d.Device.Capacity,
		})
		m := match{Match: matches}
		if err != nil {
			m.Error = err.Error()
		}
		result.Matches = append(result.Matches, m)
	}
	return result
}

func validateClass(class *resourceapi.DeviceClass) answer {
	var internal resourceinternal.DeviceClass
	if err := resourcev1.Convert_v1_DeviceClass_To_resource_DeviceClass(class, &internal, nil); err != nil {
		return answer{Error: err.Error()}
	}
	return fromErrors(validation.ValidateDeviceClass(&internal).ToAggregate())
}

func validateSlice(slice *resourceapi.ResourceSlice) answer {
	var internal resourceinternal.ResourceSlice
	resourcev1.SetObjectDefaults_ResourceSlice(slice)
	if err := resourcev1.Convert_v1_ResourceSlice_To_resource_ResourceSlice(slice, &internal, nil); err != nil {
		return answer{Error: err.Error()}
	}
	return fromErrors(validation.ValidateResourceSlice(&internal).ToAggregate())
}

func fromErrors(err error) answer {
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{}
}

func readQuantity(text string) answer {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return answer{Error: err.Error()}
	}
	// All amounts are whole billionths.
	nano := new(inf.Dec).Mul(q.AsDec(), inf.NewDec(1_000_000_000, 0))
	return answer{Nano: nano.Round(nano, 0, inf.RoundExact).String()}
}
